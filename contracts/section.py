"""The base of every section of a config: frozen, and rejects unknown keys. Used by `config` and its sections."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A field's docstring is its line in docs/configuration.md. Infinity is a word in JSON, which lacks the number."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, ser_json_inf_nan="strings")

"""What every section of a config is: frozen, and deaf to unknown keys. Used by `config` and its sections."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A field's docstring is its line in docs/configuration.md. JSON has no number for infinity: it is a word there."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, ser_json_inf_nan="strings")

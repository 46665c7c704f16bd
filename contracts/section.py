"""What every section of a config is: frozen, and deaf to unknown keys. Used by `config` and its sections."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A field's docstring is its line in docs/configuration.md."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

"""Numbers of a `config.json`, each checked against its valid range: an invalid value is rejected by its key.

Targets and draft heads are read through it, so that invalid values fail at startup and not in a step.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aerie.contracts.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ConfigNumbers:
    """Reads one object of the file. Every method raises ConfigError. A missing or null key takes its default."""

    data: Mapping[str, Any]
    where: str
    """The file, as errors name it."""
    param: str
    """The setting that chose the file."""

    def size(self, key: str, otherwise: int | None = None) -> int:
        value = self._value(key, otherwise)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refused(key, value, "a whole number of at least 1 is needed")
        return value

    def number(self, key: str, otherwise: float, *, least: float = 0.0) -> float:
        """A finite number above 0, or of at least `least` where that is given."""
        value = self._value(key, otherwise)
        fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not fits or value < least or value <= 0:
            bound = f"of at least {least:g}" if least else "above 0"
            raise self.refused(key, value, f"a finite number {bound} is needed")
        return float(value)

    def attention(self, hidden: int) -> tuple[int, int, int]:
        """Attention heads, KV heads, and the size of a head."""
        heads = self.size("num_attention_heads")
        kv_heads = self.size("num_key_value_heads", heads)
        if heads % kv_heads:
            raise self.refused("num_key_value_heads", kv_heads, f"a divisor of the {heads} attention heads is needed")
        if self.data.get("head_dim") is None and hidden % heads:
            raise self.refused("num_attention_heads", heads, f"a divisor of hidden_size {hidden} is needed")
        dim = self.size("head_dim", hidden // heads)
        if dim % 2:
            raise self.refused("head_dim", dim, "RoPE turns pairs of numbers: an even one is needed")
        return heads, kv_heads, dim

    def refused(self, key: str, value: object, needed: str) -> ConfigError:
        return ConfigError(f"{self.where} has {key} {value!r}; {needed}", param=self.param)

    def _value(self, key: str, otherwise: float | None) -> Any:
        value = self.data.get(key)
        return otherwise if value is None else value

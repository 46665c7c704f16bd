"""What is known about a sampling field: its range, its column on the device, its names elsewhere.

`contracts.sampling` annotates its fields with this and makes the table of them. Whatever handles any field reads that
table: request bodies, checks, row starts, row tables, SGLang's parameters, docs/api.md and the tests of invalid input.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import numpy as np

from aerie.contracts.errors import BadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingField:
    """One field. `name`, `kind` and `neutral` are those of the attribute that it annotates."""

    name: str = ""
    """In requests, as OpenAI and vLLM name it."""
    kind: type[Any] = float
    neutral: Any = None
    """The default. Of a column: the value that leaves the distribution unchanged."""
    least: float | None = None
    most: float | None = None
    """None if a setting is the limit."""
    above: bool = False
    """`least` itself is too low."""
    off: int | None = None
    """What clients of vLLM and SGLang send for the neutral value."""
    zero_below: float = 0.0
    """Lower values above 0 count as 0."""
    need: str | None = None
    """The flag of engine.sampling.choose.Needs that a value other than the neutral one sets."""
    sglang: str | None = None
    """In SGLang's `sampling_params`; None if SGLang's engine does not get it."""
    origin: str = "OpenAI"
    """Whose API it comes from, for docs/api.md."""
    meaning: str = ""
    """In docs/api.md."""

    @property
    def dtype(self) -> type[np.float32] | type[np.int32]:
        """Of its column."""
        return np.float32 if self.kind is float else np.int32

    def given(self, value: Any) -> Any:
        """A request's value, which may be None or `off`."""
        return self.neutral if value is None or (self.off is not None and value <= self.off) else value

    def stored(self, value: Any) -> Any:
        """The value in its column."""
        return self.kind(0) if 0 < value < self.zero_below else value

    def for_sglang(self, value: Any) -> Any:
        return self.off if self.off is not None and value == self.neutral else self.stored(value)

    def check(self, value: Any, most: float | None) -> None:
        """Raises BadRequest with the name, the limit and the value. `most` replaces the field's own."""
        least, most = self.kind(self.least), self.kind(self.most) if most is None else most
        if not math.isfinite(value) or value > most or value < least or (self.above and value == least):
            edge = "greater than" if self.above else "at least"
            raise BadRequest(f"{self.name} is {value}; it must be {edge} {least} and at most {most}", param=self.name)


def table_of(params: type[Any]) -> dict[str, SamplingField]:
    """The annotated fields of a dataclass, by name."""
    hints = get_type_hints(params, include_extras=True)
    table = {}
    for attribute in dataclasses.fields(params):
        kind, *notes = get_args(hints[attribute.name])
        for note in notes:
            if isinstance(note, SamplingField):
                table[attribute.name] = dataclasses.replace(
                    note, name=attribute.name, kind=kind, neutral=attribute.default
                )
    return table

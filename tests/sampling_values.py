"""A value of each sampling field other than its neutral one, so that tests cover new fields without a change."""

from typing import Any

from aerie.contracts.sampling import COLUMNS
from aerie.contracts.sampling_field import SamplingField


def other(field: SamplingField) -> Any:
    """A field of `COLUMNS` -> a value that 32 bits hold exactly."""
    least, most = field.least or 0, 2 if field.most is None else field.most
    value = field.kind(least + 0.75 * (most - least))
    assert value != field.neutral and value == field.dtype(value)
    return value


OTHERS: dict[str, Any] = {name: other(field) for name, field in COLUMNS.items()}

"""The table of sampling fields (contracts/sampling.py) as request bodies have it: ranges, and a base of the bodies.

`as_markdown` is the table that docs/api.md shows.
"""

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, create_model

from aerie.contracts.sampling import COLUMNS, FIELDS
from aerie.contracts.sampling_field import SamplingField


def range_of(name: str) -> Any:
    """The values that pydantic accepts for a field of the table. What a setting limits is checked later."""
    field = FIELDS[name]
    least = field.least if field.off is None else field.off
    return Field(gt=least, le=field.most) if field.above else Field(ge=least, le=field.most)


def as_markdown() -> str:
    """The fields that shape the distribution, a line each."""
    lines = ["| field | of | values | default | meaning |", "|---|---|---|---|---|"]
    for name, field in COLUMNS.items():
        lines.append(f"| `{name}` | {field.origin} | {_values(field)} | {field.neutral} | {field.meaning} |")
    return "\n".join(lines)


def _values(field: SamplingField) -> str:
    most = f"`limits.{field.name}_max`" if field.most is None else field.most
    reported = f"above {field.least}, at most {most}" if field.above else f"{field.least} to {most}"
    return reported if field.off is None else f"{reported}; {field.off} is {field.neutral}"


def _optional(field: SamplingField) -> tuple[Any, None]:
    """A field's type and default in a body: absent and null are the same."""
    return Annotated[field.kind, range_of(field.name)] | None, None


if TYPE_CHECKING:
    DistributionBody = BaseModel
else:
    DistributionBody = create_model("DistributionBody", **{name: _optional(field) for name, field in COLUMNS.items()})
"""The fields of DistributionParams. They are read by name (`distribution_of`), so no type declares them again."""

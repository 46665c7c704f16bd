"""What all request bodies share: strict types, bounded sizes, unions that say which member was meant.

Bodies are validated on the event loop, so validation must be fast: it stops at the first invalid item of a list, and
the sizes of objects and of lists of objects are bounded.
"""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, model_validator
from pydantic_core import PydanticCustomError

MAX_FIELDS = 256
"""Of one object."""
MAX_ITEMS = 1 << 14
"""Of a list of messages or prompts."""

_T = TypeVar("_T")


def few_fields(data: Any) -> Any:
    """Bounds the number of fields of an object. Passes any other value; its type is checked elsewhere."""
    if isinstance(data, dict) and len(data) > MAX_FIELDS:
        context = {"given": len(data), "most": MAX_FIELDS}
        raise PydanticCustomError("too_many_fields", "has {given} fields; at most {most} are allowed", context)
    return data


Items = Annotated[list[_T], Field(fail_fast=True)]
Few = Annotated[list[_T], Field(fail_fast=True, max_length=MAX_ITEMS)]


def either(kind_of: Callable[[Any], str | None], taken: str) -> Discriminator:
    """Selects a union's member by inspecting the value, so that an error is about the member that was meant."""
    return Discriminator(kind_of, custom_error_type="other_kind", custom_error_message=taken)


def text_or_list(value: Any) -> str | None:
    return "a text" if isinstance(value, str) else "a list" if isinstance(value, list) else None


Variables = Annotated[dict[str, Any], BeforeValidator(few_fields)]


class Body(BaseModel):
    """`strict`: rejects the string "16" as a number and 1 as a boolean, so that clients notice the mistake."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, data: Any) -> Any:
        return few_fields(data)

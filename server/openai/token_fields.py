"""Request fields that name tokens with values or as words: their shapes, as pydantic checks them."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from aerie.contracts.sampling import INT32_MAX
from aerie.contracts.token_lists import MAX_BIASES, MOST_BIAS

MAX_WORDS, MAX_WORD = 256, 64
"""Of `bad_words`, and the characters of each."""


def ids_as_keys(data: Any) -> Any:
    """Turns the keys of a JSON object into integers."""
    if not isinstance(data, dict):
        return data
    if len(data) > MAX_BIASES:
        context = {"given": len(data), "most": MAX_BIASES}
        raise PydanticCustomError("too_many_fields", "has {given} entries; at most {most} are allowed", context)
    for key in data:
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= len(str(INT32_MAX))):
            raise PydanticCustomError(
                "no_token_id", "has the key {key}; keys must be token ids", {"key": repr(key)[:64]}
            )
    return {int(key): value for key, value in data.items()}


Biases = Annotated[dict[int, Annotated[float, Field(ge=-MOST_BIAS, le=MOST_BIAS)]], BeforeValidator(ids_as_keys)]
Words = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_WORD)]], Field(fail_fast=True, max_length=MAX_WORDS)
]

"""Explains pydantic's errors about a body: one sentence per error, with the field, the value given and what is allowed.
Called by `problems`.

Users' texts are never repeated: a sentence gives only their type and size.
"""

import json
from typing import Any

MAX_FAULTS = 5
MAX_INPUT = 120
"""How many characters of an invalid value a sentence repeats."""

_WRITTEN_BY_USERS = frozenset(
    {
        "messages",
        "prompt",
        "stop",
        "bad_words",
        "chat_template_kwargs",
        "cache_salt",
        "input",
        "instructions",
        "metadata",
    }
)
_SHORT_NAMES = ("type", "role")
"""Fields of a message and its parts whose values are words of the API and may be repeated."""

_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing_size": "an integer of fewer digits",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "greater_than_equal": "at least {ge}",
    "greater_than": "greater than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "literal_error": "{expected}",
}


def explain(faults: list[dict[str, Any]]) -> tuple[str, str | None]:
    """Returns a message of a few sentences, and the field that the first sentence is about."""
    faults = _telling(faults[: 4 * MAX_FAULTS])
    lines = list(dict.fromkeys(_sentence(fault) for fault in faults))
    if len(lines) > MAX_FAULTS:
        lines[MAX_FAULTS:] = ["and more"]
    return "; ".join(lines), field(faults[0]["loc"][1:]) or None


def field(location: tuple[str | int, ...]) -> str:
    """A location as in `messages[1].content[0].type`; skips names of a union's members, which contain blanks."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif " " not in part:
            path += f".{part[:64]}" if path else part[:64]
    return path


def described(value: Any) -> str:
    """The JSON type of a value, with its size."""
    if isinstance(value, str):
        return f"a string of {len(value)} characters"
    if isinstance(value, list):
        first = value[0] if value else None
        begins = "a list" if isinstance(first, list) else described(first)
        return f"a list of {len(value)} that begins with {begins}" if value else "an empty list"
    if isinstance(value, dict):
        return f"an object of {len(value)} fields"
    try:
        return json.dumps(value)[:MAX_INPUT]
    except ValueError:  # Python refuses to print integers of thousands of digits
        return "a number of very many digits"


def _telling(faults: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drops the other errors of an object whose `type` is wrong: that error explains them all."""
    others = {fault["loc"][:-1] for fault in faults if fault["type"] == "literal_error" and fault["loc"][-1] == "type"}
    return [fault for fault in faults if fault["loc"][:-1] not in others or fault["loc"][-1] == "type"]


def _sentence(fault: dict[str, Any]) -> str:
    name, kind, context = field(fault["loc"][1:]) or "the body", fault["type"], fault.get("ctx", {})
    if kind == "missing":
        return f"{name} is missing"
    if kind == "extra_forbidden":
        return f"{name} is unknown"
    if kind in ("too_long", "too_short", "string_too_long", "string_too_short"):
        return f"{name} has {_size(fault)}"
    if kind == "other_kind":
        return f"{name} is {_given(fault)}; it must be {fault['msg']}"
    if kind in _EXPECTED:
        expected = _EXPECTED[kind].format(**{key: _json_word(value) for key, value in context.items()})
        return f"{name} is {_given(fault)}; it must be {expected}"
    return f"{name} {fault['msg']}"


def _size(fault: dict[str, Any]) -> str:
    context = fault["ctx"]
    most, least = context.get("max_length"), context.get("min_length")
    things = "characters" if fault["type"].startswith("string") else "items"
    bound = f"at most {most} are allowed" if most is not None else f"it needs at least {least}"
    return f"{len(fault['input'])} {things}; {bound}"


def _given(fault: dict[str, Any]) -> str:
    value, location = fault["input"], fault["loc"][1:]
    users = not location or (not _WRITTEN_BY_USERS.isdisjoint(location) and location[-1] not in _SHORT_NAMES)
    if isinstance(value, list | dict) or (isinstance(value, str) and users):
        return described(value)
    if isinstance(value, str) and len(value) > MAX_INPUT:
        value = value[:MAX_INPUT] + "..."
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else described(value)


def _json_word(value: Any) -> str:
    """A Literal's member as JSON: pydantic quotes it as Python does."""
    return value.replace("'", '"') if isinstance(value, str) else json.dumps(value)

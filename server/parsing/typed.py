"""Values that a model wrote as text, made into the JSON that the tool's schema asks for."""

import json
import math
from typing import Any

_LONGEST_CHAIN = 16
"""Of references to references."""


def types_of(schema: Any) -> tuple[str, ...]:
    """The types that a schema names, its alternatives included. Empty if it names none."""
    if not isinstance(schema, dict):
        return ()
    named = schema.get("type")
    types = [named] if isinstance(named, str) else [one for one in named or () if isinstance(one, str)]
    for word in ("anyOf", "oneOf"):
        for one in schema.get(word) or () if isinstance(schema.get(word), list) else ():
            types += types_of(one)
    return tuple(dict.fromkeys(types))


def resolved(schema: Any, root: Any) -> Any:
    """The schema, or the definition in `root` that it refers to."""
    for _ in range(_LONGEST_CHAIN):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        schema = root
        for word in reference.removeprefix("#/").split("/"):
            schema = schema.get(word) if isinstance(schema, dict) else None
    return schema


def typed_value(text: str, schema: Any) -> Any:
    """The value of the first type that the text fits; the text itself if it fits none."""
    for kind in types_of(schema):
        found, value = _as(text.strip(), kind)
        if found:
            return value
    return text


def _as(text: str, kind: str) -> tuple[bool, Any]:
    if kind == "boolean":
        return text.lower() in ("true", "false"), text.lower() == "true"
    if kind == "null":
        return text in ("null", "None"), None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False, None
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return True, int(value)
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    fits = {
        "integer": number and isinstance(value, int),
        "number": number,
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
    }
    return fits.get(kind, False), value


def is_object(text: str) -> bool:
    """Whether the text is a JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False

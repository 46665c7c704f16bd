"""What answers must look like in the workloads with schemas and with tools, as fields of a chat's body.

Every schema is bounded, so that a model that knows no JSON ends too.
"""

import random
from typing import Any

Json = dict[str, Any]

_WORDS = ["name", "kind", "state", "colour", "size", "place", "reason", "owner", "unit", "level"]
_VALUES = ["red", "green", "blue", "small", "large", "open", "closed", "north", "south", "early", "late"]
_TOOLS = {
    "look_up": (
        "Looks a thing up in the catalogue.",
        ("lamp", "basket", "ladder", "curtain"),
    ),
    "read_page": ("Reads a page of the manual.", ("tutorial", "library", "reference", "howto")),
    "set_state": ("Sets the state of a device.", ("on", "off", "standby")),
}


def schema_fields(chosen: random.Random) -> Json:
    """A flat object, a list of them, or one inside another."""
    flat = _object(chosen, chosen.randint(2, 5))
    shapes: tuple[Json, ...] = (
        flat,
        _strict({"items": {"type": "array", "items": flat, "minItems": 1, "maxItems": 3}}),
        _strict({"summary": {"type": "string", "maxLength": 40}, "detail": flat}),
    )
    schema = {"name": "answer", "schema": chosen.choice(shapes), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def tool_fields(chosen: random.Random) -> Json:
    """Two or three tools, one of which must be called."""
    names = chosen.sample(sorted(_TOOLS), chosen.randint(2, 3))
    return {"tools": [_tool(name) for name in names], "tool_choice": "required", "parallel_tool_calls": False}


def _tool(name: str) -> Json:
    description, values = _TOOLS[name]
    parameters = _strict({"target": {"type": "string", "enum": list(values)}, "urgent": {"type": "boolean"}})
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters, "strict": True},
    }


def _object(chosen: random.Random, fields: int) -> Json:
    return _strict({name: _value(chosen) for name in chosen.sample(_WORDS, fields)})


def _value(chosen: random.Random) -> Json:
    values: tuple[Json, ...] = (
        {"type": "string", "enum": chosen.sample(_VALUES, 4)},
        {"type": "boolean"},
        {"type": "integer", "minimum": 0, "maximum": chosen.choice((9, 100, 9999))},
    )
    return chosen.choice(values)


def _strict(properties: Json) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }

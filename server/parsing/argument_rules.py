"""Rules for arguments that are not one JSON object: elements of XML, keywords of Python. Each value follows the schema
of its property; the properties come in the schema's order.
"""

import json
from typing import Any

from aerie.contracts.grammar import with_options
from aerie.server.parsing.typed import resolved, types_of

_END = "</parameter>"
_UNHELD = ("pattern", "format", "minLength", "maxLength")
_PARTS = {"type", "properties", "required", "additionalProperties", "title", "description", "$schema", "$defs"}
_PARTS |= {"definitions", "strict", "examples", "default"}


def element_rules(schema: dict[str, Any], name: str, rules: list[str]) -> str:
    """Appends the rules for `<parameter=KEY>` elements; returns the expression of them all."""
    parts = []
    for place, (key, value) in enumerate(_properties(schema).items()):
        rule = f"{name}_{place}"
        element = _element_value(schema, key, value, rule, rules)
        rules.append(f'{rule}: {json.dumps(f"<parameter={key}>")} "\\n" {element} "\\n"')
        parts.append(rule if key in _required(schema) else f"{rule}?")
    return " ".join(parts)


def keyword_rules(schema: dict[str, Any], name: str, rules: list[str]) -> str:
    """Appends the rules for `key=value`; returns the expression of them all, with commas between them."""
    required = _required(schema)
    properties = sorted(_properties(schema).items(), key=lambda one: one[0] not in required)
    for place, (key, value) in enumerate(properties):
        if not key.isidentifier():
            raise ValueError(f"the parameter {key!r} is not a name in Python, in which this model writes its calls")
        rules.append(f"{name}_{place}: {json.dumps(key + '=')} {_value(schema, value)}")
    needed = sum(key in required for key, _ in properties)
    first = ' ", " '.join(f"{name}_{place}" for place in range(needed))
    rest = " ".join(f'(", " {name}_{place})?' for place in range(needed, len(properties)))
    if needed:
        return f"{first} {rest}"
    chains = []
    for place in range(len(properties)):
        after = " ".join(f'(", " {name}_{later})?' for later in range(place + 1, len(properties)))
        chains.append(f"{name}_{place} {after}")
    return f"({' | '.join(chains)})?" if chains else ""


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(schema) - _PARTS)
    if unknown:
        raise ValueError(f"{unknown[0]} beside properties cannot be held in the calls of this model's family")
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise ValueError("properties must be an object")
    return properties


def _required(schema: dict[str, Any]) -> list[Any]:
    required = schema.get("required", [])
    if not isinstance(required, list):
        raise ValueError("required must be a list")
    missing = [key for key in required if key not in _properties(schema)]
    if missing:
        raise ValueError(f"required names {str(missing[0])[:40]!r}, which is not among the properties")
    return required


def _element_value(schema: dict[str, Any], key: str, value: Any, rule: str, rules: list[str]) -> str:
    """Strings stand as they are, other values as JSON; then the end of the element."""
    end, found = json.dumps("\n" + _END), resolved(value, schema)
    if types_of(found) not in ((), ("string",)):
        return f"{_value(schema, value)} {end}"
    choices = found.get("enum", [found["const"]] if "const" in found else None) if isinstance(found, dict) else None
    if isinstance(choices, list):
        texts = [json.dumps(one if isinstance(one, str) else json.dumps(one)) for one in choices]
        return f"({' | '.join(texts)}) {end}"
    unheld = [word for word in _UNHELD if isinstance(found, dict) and word in found]
    if unheld:
        raise ValueError(
            f"{unheld[0]} of the parameter {key!r} cannot be held: this model writes strings in calls without quotes"
        )
    rules.append(f"{rule}_text[suffix={json.dumps(_END)}]: /(.|\\n)*/")
    return f"{rule}_text"


def _value(schema: dict[str, Any], value: Any) -> str:
    """The value as JSON. Its references are to definitions of the whole schema."""
    held: dict[str, Any] = {word: schema[word] for word in ("$defs", "definitions") if word in schema}
    return f"%json {json.dumps(with_options({**held, **value} if isinstance(value, dict) else {}))}"

"""The published OpenAPI document of Open Responses as validators of responses and events.

The document is not kept here: `OPEN_RESPONSES` names a copy of it, and without one nothing is checked against it.
"""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

RENAMED = {f"response.reasoning_text.{what}": f"response.reasoning.{what}" for what in ("delta", "done")}
"""Events that OpenAI's clients know by another name, with the name that the document gives them."""


def check_published(data: dict[str, Any]) -> None:
    """Of an event, or of a response."""
    path = os.environ.get("OPEN_RESPONSES")
    if path is not None:
        kind = data.get("type")
        named = {**data, "type": RENAMED.get(kind, kind)} if kind else data
        _validator(path, named.get("type", "response")).validate(named)


@cache
def _validator(path: str, kind: str) -> jsonschema.Draft202012Validator:
    document = json.loads(Path(path).read_text())
    schemas = document["components"]["schemas"]
    schemas["JsonSchemaResponseFormat"]["properties"]["schema"] = {}  # it allows null alone; clients read the schema
    names = {
        kind: name
        for name, schema in schemas.items()
        if name.endswith("StreamingEvent")
        for kind in schema["properties"]["type"]["enum"]
    }
    name = names.get(kind, "ResponseResource" if kind == "response" else f"no event of the type {kind}")
    assert name in schemas, name
    return jsonschema.Draft202012Validator({**document, "$ref": f"#/components/schemas/{name}"})

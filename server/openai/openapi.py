"""The OpenAPI document: FastAPI's, plus what depends on this server's settings: its limits and its API key.

Made by `app` on first request.
"""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from aerie.contracts.config import Config
from aerie.contracts.server_section import LimitsConfig
from aerie.server.http.problems import ErrorBody
from aerie.server.openai.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from aerie.server.openai.shapes import ChatChunk, CompletionChunk

_MODELS = (ChatBody, CompletionBody, TokenizeBody, DetokenizeBody, ChatChunk, CompletionChunk, ErrorBody)
_HTTP = {"get", "post"}


def document(
    app: FastAPI, config: Config, open_paths: frozenset[str], models: tuple[type[BaseModel], ...]
) -> dict[str, Any]:
    """If an API key is set, all paths except `open_paths` require it. `models` are those of other dialects."""
    made = get_openapi(title=app.title, version=app.version, routes=app.routes)
    # FastAPI's schema models hold bounds as floats, which cannot represent 2**63 - 1.
    _, exact = models_json_schema(
        [(one, "validation") for one in _MODELS + models], ref_template="#/components/schemas/{model}"
    )
    schemas = made["components"]["schemas"] = made["components"]["schemas"] | exact["$defs"]
    for body in ("ChatBody", "CompletionBody", "ResponseBody"):
        _bound(schemas[body]["properties"], config.limits)
    if config.server.api_key is not None:
        made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"key": []}]
        for path in open_paths & made["paths"].keys():
            for method in _HTTP & made["paths"][path].keys():
                made["paths"][path][method]["security"] = []
    return made


def _bound(properties: dict[str, Any], limits: LimitsConfig) -> None:
    """Adds the limits that `parameters` checks."""
    if "n" in properties:
        _kind(properties["n"], "integer")["maximum"] = limits.max_choices
    _kind(properties["temperature"], "number")["maximum"] = limits.temperature_max
    stop = {"minLength": 1, "maxLength": limits.max_stop_length}
    _kind(properties["stop"], "string").update(stop)
    _kind(properties["stop"], "array")["items"].update(stop)


def _kind(schema: dict[str, Any], kind: str) -> dict[str, Any]:
    """The member of type `kind` in a schema that may be a union, possibly nested."""
    return next(member for member in _members(schema) if member.get("type") == kind)


def _members(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices is None:
        yield schema
    else:
        for choice in choices:
            yield from _members(choice)

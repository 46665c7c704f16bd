"""Reads which grammar a body asks its answer to match: OpenAI's `response_format`, and vLLM's names.

Called by `respond`. The grammar is made later, on a thread, since a schema may be large.
"""

import json
from collections.abc import Callable
from typing import Any

from aerie.contracts.errors import BadRequest
from aerie.contracts.grammar import Grammar, GrammarKind
from aerie.server.openai.bodies import GenerateBody, ResponseFormat, StructuredOutputs
from aerie.server.text.grammars import Constraint


def constraint_of(body: GenerateBody) -> Constraint | None:
    """What the body asks for; None for free text. Raises BadRequest if it asks for two grammars, or for one that
    another of its fields rules out.
    """
    asked = [*_from_format(body.response_format), *_from_outputs(body.structured_outputs), *_from_guided(body)]
    if len(asked) > 1:
        first, second = asked[0].param, asked[1].param
        raise BadRequest(f"{first} and {second} both constrain the answer; send one of them", param=second)
    if asked and body.ignore_eos:
        raise BadRequest(
            f"ignore_eos cannot be combined with {asked[0].param}, which ends the answer", param="ignore_eos"
        )
    return asked[0] if asked else None


def schema_of(body: GenerateBody) -> dict[str, Any] | None:
    """The JSON schema that `response_format` asks for; None if it asks for none."""
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "object"}
    schema = None if wanted.json_schema is None else wanted.json_schema.schema_
    return schema if isinstance(schema, dict) else None


def _from_format(wanted: ResponseFormat | None) -> list[Constraint]:
    if wanted is None or wanted.type == "text":
        return []
    if wanted.type == "json_object":
        return [_constraint("response_format", "json_object", lambda: "")]
    if wanted.json_schema is None or wanted.json_schema.schema_ is None:
        field = "response_format.json_schema" + (".schema" if wanted.json_schema is not None else "")
        raise BadRequest(f"{field} is missing; the type json_schema needs it", param=field)
    return [_schema("response_format.json_schema.schema", wanted.json_schema.schema_)]


def _from_outputs(wanted: StructuredOutputs | None) -> list[Constraint]:
    if wanted is None:
        return []
    found = _named("structured_outputs.", wanted.json_, wanted.regex, wanted.choice, wanted.grammar)
    if wanted.json_object:
        found.append(_constraint("structured_outputs.json_object", "json_object", lambda: ""))
    if not found:
        raise BadRequest(
            "structured_outputs asks for nothing; send json, json_object, regex, choice or grammar, or leave it out",
            param="structured_outputs",
        )
    return found


def _from_guided(body: GenerateBody) -> list[Constraint]:
    return _named("guided_", body.guided_json, body.guided_regex, body.guided_choice, body.guided_grammar)


def _named(
    prefix: str, schema: dict[str, Any] | str | None, regex: str | None, choice: list[str] | None, grammar: str | None
) -> list[Constraint]:
    found = [] if schema is None else [_schema(f"{prefix}json", schema)]
    if regex is not None:
        found.append(_constraint(f"{prefix}regex", "regex", lambda: regex))
    if choice is not None:
        found.append(_constraint(f"{prefix}choice", "choice", lambda: json.dumps(choice)))
    if grammar is not None:
        found.append(_constraint(f"{prefix}grammar", "lark", lambda: grammar))
    return found


def _schema(param: str, schema: dict[str, Any] | str) -> Constraint:
    return _constraint(param, "json_schema", lambda: schema if isinstance(schema, str) else json.dumps(schema))


def _constraint(param: str, kind: GrammarKind, text: Callable[[], str]) -> Constraint:
    return Constraint(param, lambda: Grammar(kind=kind, text=text()))

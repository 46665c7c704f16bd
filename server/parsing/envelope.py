"""The grammar of an answer that has to call tools, or may: each call in the markup of the model's own family, around
arguments of the tool's own schema. In llguidance's variant of Lark's notation.

A model that must write another markup than its own rambles. Markers that are tokens of the model are named by their
ids; the rest is text.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aerie.contracts.grammar import with_options
from aerie.server.parsing.argument_rules import element_rules, keyword_rules
from aerie.server.parsing.families import MARKER, ToolFamily

TokenOf = Callable[[str], int | None]


@dataclass(frozen=True, slots=True)
class CallShape:
    """A tool that may be called. `schema` is that of its arguments, an object."""

    name: str
    schema: dict[str, Any]


def envelope(
    family: ToolFamily,
    tools: Sequence[CallShape],
    token_of: TokenOf,
    *,
    forced: bool,
    one_call: bool,
    answer: dict[str, Any] | None = None,
) -> str:
    """The grammar. `forced`: the answer is nothing but calls; else it is calls, or text, or both where the family has
    both. `one_call`: there is one at most. `answer` is the schema of an answer that calls nothing; None is any text.

    Raises ValueError about a schema that calls of this family cannot hold.
    """
    rules = [f"call: {' | '.join(f'call_{place}' for place in range(len(tools)))}"]
    for place, tool in enumerate(tools):
        begin, end = (spelled(part.replace("$NAME", tool.name), token_of) for part in (family.begin, family.end))
        rules.append(f"call_{place}: {begin} {_arguments(family, tool, f'arguments_{place}', rules)} {end}")
    more = "" if one_call else f" ({spelled(family.between, token_of)} call)*"
    rules.append(f"calls: {spelled(family.before, token_of)} call{more} {spelled(family.after, token_of)}")
    return "\n".join([_start(family, token_of, rules, forced=forced, one_call=one_call, answer=answer), *rules]) + "\n"


def _start(
    family: ToolFamily,
    token_of: TokenOf,
    rules: list[str],
    *,
    forced: bool,
    one_call: bool,
    answer: dict[str, Any] | None,
) -> str:
    if forced:
        return "start: calls"
    if answer is not None:
        return f"start: calls | %json {_json(answer)}"
    if family.only_first:
        first = "".join(re.escape(opens[0]) for opens in family.opens)
        rules.append(f"TEXT: /([^\\s{first}](.|\\n)*)?/")
        return "start: calls | TEXT"
    free = "/(.|\\n)*/"
    spelled = [marker for marker in family.opens if token_of(marker) is None]
    rules.append(" & ".join([f"TEXT: {free}", *(f"~/(.|\\n)*{_slashed(marker)}(.|\\n)*/" for marker in spelled)]))
    if token_of(family.opens[0]) is None:
        return "start: calls | TEXT"  # a lexer cannot tell where text ends and a marker of text begins
    return "start: TEXT calls? TEXT" if one_call else "start: TEXT (calls TEXT)*"


def _arguments(family: ToolFamily, tool: CallShape, name: str, rules: list[str]) -> str:
    if family.reads == "xml":
        return element_rules(tool.schema, name, rules)
    if family.reads == "python":
        return keyword_rules(tool.schema, name, rules)
    return f"%json {_json(tool.schema)}"


def _json(schema: dict[str, Any]) -> str:
    return json.dumps(with_options(schema))


def spelled(text: str, token_of: TokenOf) -> str:
    """A text as tokens and strings, in Lark's notation."""
    parts, place = [], 0
    for found in MARKER.finditer(text):
        id = token_of(found[0])
        if id is not None:
            parts += [json.dumps(text[place : found.start()]), f"<[{id}]>"]
            place = found.end()
    parts.append(json.dumps(text[place:]))
    return " ".join(part for part in parts if part != '""')


def _slashed(marker: str) -> str:
    return re.escape(marker).replace("/", "\\/")

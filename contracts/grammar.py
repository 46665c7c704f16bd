"""What an answer must match: a grammar, as a request carries it from the server to the lane.

The server reads and checks it; the lane builds the matcher that masks the target's choices. `written` is the text that
both build from, so that what was checked is what is used.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "lark"]

_WHITESPACE = r"([ ]|\n[ ]{0,20})?"
"""What JSON may hold between its parts: a space, or a new line and its indentation, which models were taught to write.
Unbounded whitespace invites endless newlines.
"""
_JSON_OPTIONS = {"whitespace_pattern": _WHITESPACE, "lenient": False, "coerce_one_of": False}
_ESCAPES = re.compile(r"(\\[^\n](?:\\[^\n])*)")
_BETWEEN = "\ud800"
"""Stands for escapes: half a pair, which no text holds."""


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """Constrains an answer, up to the end token that follows it."""

    kind: GrammarKind
    text: str = ""
    """The JSON of a schema, a regular expression, the JSON list of the choices, or a grammar in llguidance's variant of
    Lark's notation, whose first rule is `start`. Empty for `json_object`.
    """
    behind: str = ""
    """The text that ends the reasoning which comes first, such as `</think>`: the answer is free up to there, and the
    grammar begins right behind it. Empty: it begins with the answer.
    """
    opens: str = ""
    """The text in angle brackets that opens that reasoning, if the answer has to begin with it to have any. Empty: it
    has been opened.
    """


@dataclass(slots=True)
class Masking:
    """What a step did for the rows whose answers must match a grammar."""

    choices: int = 0
    """Choices along their paths."""
    masks: int = 0
    """Masks made for them."""
    distinct: int = 0
    """How many of these were different from each other."""
    seconds: float = 0.0
    """CPU time to make them."""
    drafted: int = 0
    """Drafted tokens of the rows."""
    forbidden: int = 0
    """How many of these the target would have chosen, were they allowed."""
    forced: int = 0
    """Drafted tokens that were forced by a grammar, so that no head had to guess them."""
    late: int = 0
    """Rows that committed nothing, because their mask was not ready."""

    def add(self, other: "Masking") -> None:
        self.choices += other.choices
        self.masks += other.masks
        self.distinct += other.distinct
        self.seconds += other.seconds
        self.drafted += other.drafted
        self.forbidden += other.forbidden
        self.forced += other.forced
        self.late += other.late


@dataclass(frozen=True, slots=True)
class Prepared:
    """The lane is ready for a request's grammar, or has failed to be."""

    request: int
    seconds: float
    error: str | None = None
    reused: bool = False
    """It had been built for an earlier request."""


class Builder(Protocol):
    """Builds grammars where the steps run."""

    def prepare(self, request: int, grammar: Grammar, done: Callable[[Prepared], None]) -> None:
        """Returns at once; `done` is called on another thread."""

    def forget(self, request: int) -> None: ...


class Guiding(Protocol):
    @property
    def guides(self) -> Builder | None:
        """None if answers cannot be held to a grammar."""


class Preparing(Protocol):
    """Where grammars are built beside the steps: a lane whose capacity has grammars."""

    def prepare(self, request: int, grammar: Grammar) -> None:
        """Begins to build a request's grammar."""

    def prepared(self, seconds: float = 0.0) -> list[Prepared]:
        """What has been built since the last call; waits up to `seconds` for the first."""

    def forget(self, request: int) -> None:
        """Frees what was prepared for a request; its row keeps what it has."""


def written(grammar: Grammar, marker: int | None = None) -> str:
    """The text from which llguidance builds a matcher. `marker` is the token that `behind` is, if it is one token;
    `opens` then is one too.

    A schema's text goes in as it is: the lane calls this beside its steps, and what reads or writes JSON holds the
    interpreter's lock to its end. Raises ValueError for a schema in no braces, and for choices that are not JSON.
    """
    answer = _part(grammar)
    if not grammar.behind:
        return f'{{"grammars": [{{{answer}}}]}}'
    reasoning = json.dumps(_reasoning(grammar, marker))
    return f'{{"grammars": [{{"lark_grammar": {reasoning}}}, {{{answer}, "name": "answer"}}]}}'


def _part(grammar: Grammar) -> str:
    """A member of an object: a notation, and the grammar in it."""
    if grammar.kind in ("json_object", "json_schema"):
        return f'"json_schema": {_optioned(grammar)}'
    if grammar.kind == "choice":
        return f'"lark_grammar": {json.dumps(f"start: {choices_of(grammar)}")}'
    if grammar.kind == "regex":
        return f'"lark_grammar": {json.dumps(f"start: /{_slashed(grammar.text)}/")}'
    return f'"lark_grammar": {json.dumps(grammar.text)}'


def _optioned(grammar: Grammar) -> str:
    """The text of the schema `schema_of`, without reading it. Of two members of one name, the last counts."""
    if grammar.kind == "json_object":
        return json.dumps(schema_of(grammar))
    text = grammar.text.strip()
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError(f"a schema must be a JSON object, not {text[:40]}")
    members = text[1:-1].strip()
    return f'{{{members}{members and ", "}"x-guidance": {json.dumps(_JSON_OPTIONS)}}}'


def schema_of(grammar: Grammar) -> dict[str, Any]:
    """What an answer in JSON must match, as llguidance takes it from us. Raises ValueError for a text that is not the
    JSON of an object.
    """
    schema = json.loads(grammar.text) if grammar.kind == "json_schema" else {"type": "object"}
    if not isinstance(schema, dict):
        raise ValueError(f"a schema must be a JSON object, not {json.dumps(schema)[:40]}")
    return with_options(schema)


def choices_of(grammar: Grammar) -> str:
    """The choices in Lark's notation. Raises ValueError for text that is not JSON."""
    return json.dumps(json.loads(grammar.text), separators=(" | ", ": "))[1:-1]


def with_options(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema as llguidance takes it from us."""
    return {**schema, "x-guidance": _JSON_OPTIONS}


def _slashed(regex: str) -> str:
    """The expression between the slashes of Lark's notation. Without a loop in Python, as in `written`."""
    parts = _ESCAPES.split(regex)
    others = _BETWEEN.join(parts[::2]).replace("\\\n", "\n").replace("\n", "\\n").replace("/", "\\/")
    parts[::2] = others.split(_BETWEEN)
    return "".join(parts)


def _reasoning(grammar: Grammar, marker: int | None) -> str:
    """Free text up to the end marker, then the rule `answer`. Models write newlines between them."""
    if marker is not None:
        opens, text, thought = grammar.opens, "TEXT", f"TEXT <[{marker}]> GAP"
    else:
        opens, text, thought = json.dumps(grammar.opens), f"text[suffix={json.dumps(grammar.behind)}]", "text GAP"
    start = f"({opens} {thought})?" if grammar.opens else thought
    return f"start: {start} @answer\n{text}: /(.|\\n)*/\nGAP: /\\n{{0,2}}/"


def vocabulary_of(tokenizer: str) -> str:
    """The JSON of a tokenizer in which added tokens such as `</think>` are control tokens, special or not: a grammar
    names them, and free text does not hold them.
    """
    data = json.loads(tokenizer)
    for token in data.get("added_tokens", ()):
        token["special"] = token["special"] or (token["content"][:1] + token["content"][-1:]) in ("<>", "[]")
    return json.dumps(data)

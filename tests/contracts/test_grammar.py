"""The text that a matcher is built from: made beside the steps of a lane, so without a look at each character."""

import json
import sys
from typing import Any

import pytest

from aerie.contracts import grammar as notation
from aerie.contracts.grammar import Grammar, schema_of, written

SCHEMAS = [
    "{}",
    " { }\n",
    '{"type": "object"}',
    '{"enum": ["é\\n", "}"]} ',
    '{"x-guidance": {"lenient": true}, "const": 1}',
]


@pytest.mark.parametrize("text", SCHEMAS)
def test_a_schema_has_our_options(text: str) -> None:
    grammar = Grammar(kind="json_schema", text=text)
    assert json.loads(written(grammar)) == {"grammars": [{"json_schema": schema_of(grammar)}]}


def test_an_answer_behind_reasoning_is_the_second_grammar() -> None:
    schema = Grammar(kind="json_schema", text='{"type": "object"}', behind="</think>")
    first, second = json.loads(written(schema, marker=5))["grammars"]
    assert "<[5]>" in first["lark_grammar"] and "@answer" in first["lark_grammar"]
    assert second == {"json_schema": schema_of(schema), "name": "answer"}


def test_a_schema_goes_in_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads or writes JSON holds the interpreter's lock for milliseconds, and steps wait for it."""
    small = []

    def dumps(value: Any, **options: Any) -> str:
        text = json.JSONEncoder(**options).encode(value)
        small.append(len(text) < 1000)
        return text

    large = json.dumps({"properties": {f"field {n}": {"type": "integer"} for n in range(1000)}})
    monkeypatch.setattr(notation, "json", type("Json", (), {"dumps": staticmethod(dumps)}))  # it has no loads
    assert large.removesuffix("}") in written(Grammar(kind="json_schema", text=large, behind="</think>"))
    assert small and all(small)


@pytest.mark.parametrize("kind", ["json_schema", "regex", "choice", "lark"])
def test_long_texts_take_no_more_calls_than_short_ones(kind: Any) -> None:
    parts = {
        "json_schema": lambda many: json.dumps({"enum": [f"value {n}" for n in range(many)]}),
        "regex": lambda many: "a/\\d\n" * many,
        "choice": lambda many: json.dumps(["yes", "no"] * many),
        "lark": lambda many: 'start: "a"' + ' | "a/b"' * many,
    }
    few, many = (_calls(Grammar(kind=kind, text=parts[kind](count))) for count in (1, 1000))
    assert 0 < few == many


def _calls(grammar: Grammar) -> int:
    """Calls of functions, those of C included, that `written` makes."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        written(grammar)
    finally:
        sys.setprofile(None)
    return calls

"""Which grammar a request asks for, and that every refusal is a 400 with the field before anything is queued."""

import json
import threading
from typing import Any

import aiohttp
import hypothesis
import hypothesis.strategies as some
import pytest

from aerie.contracts.grammar import Grammar, written
from aerie.contracts.messages import Failed
from aerie.server.text.grammars import Grammars
from tests.patience import PATIENCE
from tests.server.conftest import Live, Start
from tests.server.openai.test_events import failing_after

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
SCHEMA = {
    "type": "object",
    "properties": {"z": {"type": "integer"}, "a": {"enum": ["x/y", "é"]}},
    "required": ["z", "a"],
}


async def ask(live: Live, http: aiohttp.ClientSession, fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    async with http.post(f"{live.url}/v1/chat/completions", json=CHAT | fields) as answer:
        data = await answer.json()
        return answer.status, data.get("error", data)


ASKED: list[tuple[dict[str, Any], Grammar | None]] = [
    ({"response_format": None}, None),
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, Grammar(kind="json_object")),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}},
        Grammar(kind="json_schema", text=json.dumps(SCHEMA)),
    ),
    ({"structured_outputs": {"json": SCHEMA}}, Grammar(kind="json_schema", text=json.dumps(SCHEMA))),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, Grammar(kind="json_schema", text=json.dumps(SCHEMA))),
    ({"structured_outputs": {"json_object": True}}, Grammar(kind="json_object")),
    ({"structured_outputs": {"regex": "a/b+"}}, Grammar(kind="regex", text="a/b+")),
    ({"structured_outputs": {"choice": ["a", "é"]}}, Grammar(kind="choice", text=json.dumps(["a", "é"]))),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, Grammar(kind="lark", text='start: "a"')),
    ({"guided_json": SCHEMA}, Grammar(kind="json_schema", text=json.dumps(SCHEMA))),
    ({"guided_regex": "[0-9]+"}, Grammar(kind="regex", text="[0-9]+")),
    ({"guided_choice": ["yes", "no"]}, Grammar(kind="choice", text='["yes", "no"]')),
    ({"guided_grammar": 'start: "a"'}, Grammar(kind="lark", text='start: "a"')),
]


@pytest.mark.parametrize(("fields", "grammar"), ASKED, ids=lambda value: str(value)[:50])
async def test_the_scheduler_gets_the_grammar(
    live: Live, http: aiohttp.ClientSession, fields: dict[str, Any], grammar: Grammar | None
) -> None:
    assert (await ask(live, http, fields))[0] == 200
    assert live.fake.seen[0].grammar == grammar


async def test_ebnf_is_read_as_vllm_reads_it(live: Live, http: aiohttp.ClientSession) -> None:
    status, _ = await ask(live, http, {"structured_outputs": {"grammar": 'root ::= "yes" | "no"'}})
    grammar = live.fake.seen[0].grammar
    assert status == 200 and grammar is not None
    assert "start" in grammar.text and "::=" not in grammar.text


def _nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "yaml"}}, "response_format.type", "yaml"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
        "response_format.json_schema.schema",
        "missing",
    ),
    ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json", "uniqueItems"),
    ({"guided_json": {"type": "strin"}}, "guided_json", "strin"),
    ({"guided_json": {"type": "string", "format": "colour"}}, "guided_json", "colour"),
    ({"guided_json": {"$ref": "http://127.0.0.1:1/x"}}, "guided_json", "http://127.0.0.1:1/x"),
    ({"guided_json": "{"}, "guided_json", "cannot be read"),
    ({"guided_json": "[1]"}, "guided_json", "must be a JSON object"),
    ({"guided_json": 5}, "guided_json", "5"),
    ({"guided_json": {"$ref": "#"}}, "guided_json", "no text matches it"),
    ({"guided_json": _nested(65)}, "guided_json", "limits.grammar_nesting"),
    ({"guided_json": {"enum": ["x" * 70_000]}}, "guided_json", "limits.grammar_bytes"),
    ({"guided_regex": "a("}, "guided_regex", "unclosed"),
    ({"guided_choice": []}, "guided_choice", ""),
    ({"guided_grammar": "start: missing_rule"}, "guided_grammar", "missing_rule"),
    ({"guided_grammar": "root ::= ("}, "guided_grammar", "cannot be"),
    ({"structured_outputs": {}}, "structured_outputs", "nothing"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "structural_tag"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice", "regex"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "response_format"),
    ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "guided_regex"),
]


@pytest.mark.parametrize(("fields", "param", "named"), REFUSED, ids=lambda value: str(value)[:50])
async def test_what_cannot_be_used_is_refused_before_it_is_queued(
    live: Live, http: aiohttp.ClientSession, fields: dict[str, Any], param: str, named: str
) -> None:
    status, error = await ask(live, http, fields)
    assert (status, error["param"]) == (400, param), error
    assert named in error["message"] and len(error["message"]) < 1000
    assert not live.fake.seen and live.service.admission.taken == 0


async def test_a_schema_cannot_weaken_its_own_check(live: Live, http: aiohttp.ClientSession) -> None:
    schema = {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}
    assert (await ask(live, http, {"guided_json": schema}))[0] == 400


async def test_a_grammar_that_takes_too_long_is_refused(
    start: Start, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = threading.Event()
    monkeypatch.setattr(Grammars, "check", lambda *_: refused.wait(PATIENCE))
    async with start(settings={"limits": {"grammar_seconds": 1e-3}}) as live:
        status, error = await ask(live, http, {"guided_regex": "a+"})
        refused.set()
        assert (status, error["param"]) == (400, "guided_regex")
        assert "limits.grammar_seconds" in error["message"]


WORDS = """type properties items required enum const anyOf oneOf allOf not minItems maxItems minLength maxLength pattern
format minimum multipleOf additionalProperties patternProperties $ref $defs if then uniqueItems x-guidance"""
KEYWORDS = some.sampled_from(WORDS.split())
LEAVES = some.one_of(
    some.none(), some.booleans(), some.integers(-3, 10**9), some.floats(allow_nan=False, allow_infinity=False),
    some.sampled_from(["object", "array", "string", "integer", "(a*)*b", "[", "date", "#", "#/$defs/a", ""]),
)  # fmt: skip
SCHEMAS = some.recursive(
    LEAVES,
    lambda inner: some.one_of(some.lists(inner, max_size=3), some.dictionaries(KEYWORDS, inner, max_size=4)),
    max_leaves=12,
)


async def test_a_grammar_that_fails_later_names_its_field(start: Start, http: aiohttp.ClientSession) -> None:
    """As at a limit of llguidance in the middle of an answer."""
    failed = Failed(id="", code="invalid_grammar", message="the answer's grammar cannot be used", status=400)
    async with start(failing_after([], failed)) as live:
        status, error = await ask(live, http, {"guided_json": {"type": "object"}})
        assert (status, error["param"], error["code"]) == (400, "guided_json", "invalid_grammar")
        text = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}
        async with http.post(f"{live.url}/v1/responses", json={"input": "hi", "text": text}) as answer:
            error = (await answer.json())["error"]
        assert (answer.status, error["param"]) == (400, "text.format.schema"), error


@hypothesis.settings(
    max_examples=150, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(schema=some.dictionaries(KEYWORDS, SCHEMAS, max_size=5))
async def test_fuzzed_schemas_are_answered_or_refused(
    live: Live, http: aiohttp.ClientSession, schema: dict[str, Any]
) -> None:
    status, error = await ask(live, http, {"guided_json": schema, "max_tokens": 1})
    assert status == 200 or (status, error["param"]) == (400, "guided_json"), error


@pytest.mark.parametrize("regex", ["a/b", r"a\/b", "a\nb", r"\\/", "a\\\nb"])
def test_a_regex_is_one_literal_of_larks_notation(regex: str) -> None:
    rule = json.loads(written(Grammar(kind="regex", text=regex)))["grammars"][0]["lark_grammar"]
    inner = rule.removeprefix("start: /").removesuffix("/")
    assert "\n" not in inner
    assert "/" not in inner.replace("\\\\", "").replace("\\/", "")

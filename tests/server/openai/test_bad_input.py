"""Every bad request gets a clear error that names field, limit and value, and no running request notices."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import openai
import pytest

from aerie.contracts.sampling import COLUMNS
from aerie.contracts.sampling_field import SamplingField
from aerie.contracts.server_section import LimitsConfig
from tests.patience import come
from tests.server.conftest import ANSWER, Live, Start
from tests.server.fake_scheduler import MAX_LENGTH, VOCABULARY, Script

USER = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
COMPLETE = "/v1/completions"


def outside(field: SamplingField) -> Iterator[tuple[Any, list[str]]]:
    """Values that a field of the table does not take, and what the error says."""
    least = field.least if field.off is None else field.off
    most = LimitsConfig().temperature_max if field.most is None else field.most
    step = 0.5 if field.kind is float else 1
    assert least is not None
    low = least if field.above else least - step
    yield low, [f"{field.name} is {low}; it must be", f"greater than {least}" if field.above else f"at least {least}"]
    yield most + step, [f"{field.name} is {most + step}; it must be", f"at most {most}"]
    yield "hot", [f'{field.name} is "hot"; it must be']
    yield True, [f"{field.name} is true; it must be"]
    if field.kind is int:
        yield most - 0.5, [f"{field.name} is {most - 0.5}; it must be an integer"]


BAD_FIELDS: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"temperature": 10**400}, "temperature", []),
    ({"n": 0}, "n", ["0", "1"]),
    ({"n": 10**6}, "n", ["1000000", "16"]),
    ({"n": True}, "n", ["true", "integer"]),
    ({"n": "2"}, "n", ["2"]),
    ({"max_tokens": 0}, "max_tokens", ["0", "1"]),
    ({"max_tokens": 10**9}, "max_tokens", [str(10**9), str(MAX_LENGTH)]),
    ({"max_tokens": 16.5}, "max_tokens", ["16.5"]),
    ({"max_completion_tokens": 10**9}, "max_completion_tokens", [str(10**9), str(MAX_LENGTH)]),
    ({"max_completion_tokens": -3}, "max_completion_tokens", ["-3"]),
    ({"max_tokens": 5, "min_tokens": 6}, "min_tokens", ["6", "5"]),
    ({"min_tokens": 5000}, "min_tokens", ["5000"]),
    ({"seed": 2**63}, "seed", [str(2**63)]),
    ({"stop": ["x"] * 100_000 + ["y"]}, None, []),
    ({"stop": [str(i) for i in range(100_000)]}, "stop", ["100000", "16"]),
    ({"stop": ["a" * 257]}, "stop", ["257", "256"]),
    ({"stop": ""}, "stop", ["0", "1"]),
    ({"stop": 7}, "stop", ["stop is 7; it must be a string or a list of strings"]),
    ({"stop": ["x", 5]}, "stop[1]", ["stop[1] is 5; it must be a string"]),
    ({"stop_token_ids": list(range(100))}, "stop_token_ids", ["100", "8"]),
    ({"stop_token_ids": [VOCABULARY]}, "stop_token_ids", [str(VOCABULARY), str(VOCABULARY - 1)]),
    ({"logit_bias": {"5": 101}}, "logit_bias[5]", ["101", "100"]),
    ({"logit_bias": {"5": -100.5}}, "logit_bias[5]", ["-100.5", "-100"]),
    ({"logit_bias": {"5": "1"}}, "logit_bias[5]", ["a number"]),
    ({"logit_bias": {"5": True}}, "logit_bias[5]", ["true", "a number"]),
    ({"logit_bias": {"a": 1}}, "logit_bias", ["'a'", "token ids"]),
    ({"logit_bias": {"-1": 1}}, "logit_bias", ["'-1'", "token ids"]),
    ({"logit_bias": {"9" * 30: 1}}, "logit_bias", ["token ids"]),
    ({"logit_bias": {str(VOCABULARY): 1}}, "logit_bias", [str(VOCABULARY), str(VOCABULARY - 1)]),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", ["1025", "1024"]),
    ({"logit_bias": [1]}, "logit_bias", ["an object"]),
    ({"allowed_token_ids": []}, "allowed_token_ids", ["empty"]),
    ({"allowed_token_ids": [VOCABULARY]}, "allowed_token_ids", [str(VOCABULARY), str(VOCABULARY - 1)]),
    ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]", ["-1", "0"]),
    ({"allowed_token_ids": 5}, "allowed_token_ids", ["5", "a list"]),
    ({"bad_words": ["secret text of several tokens"]}, "bad_words[0]", ["tokens", "one token"]),
    ({"bad_words": ["a", ""]}, "bad_words[1]", []),
    ({"bad_words": ["x" * 65]}, "bad_words[0]", ["65", "64"]),
    ({"bad_words": ["a"] * 257}, "bad_words", ["257", "256"]),
    ({"bad_words": "a"}, "bad_words", ["a list"]),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", ["21", "20"]),
    ({"top_logprobs": 2}, "top_logprobs", ["logprobs"]),
    ({"stream_options": {"include_usage": True}}, "stream_options", ["stream"]),
    ({"speculation": {"max_draft_tokens": 64}}, "speculation.max_draft_tokens", ["64", "63"]),
    ({"speculation": {"enabled": "no"}}, "speculation.enabled", ["no"]),
    ({"speculation": {"max_draft_token": 3}}, "speculation.max_draft_token", ["max_draft_token"]),
    ({"cache_salt": "s" * 129}, "cache_salt", ["128"]),
    ({"messages": []}, "messages", []),
    ({"messages": "hi"}, "messages", ["messages is a string of 2 characters; it must be a list"]),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", ["5; it must be a string or a list of"]),
    ({"messages": [{"content": "x"}]}, "messages[0].role", ["missing"]),
    ({"messages": [{"role": "pirate", "content": "x"}]}, "messages", ["pirate"]),
    ({"model": 5}, "model", ["5"]),
    ({"stream": "yes"}, "stream", ["yes"]),
    ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs", ["tokenize"]),
]

BAD_FIELDS += [({name: value}, name, named) for name, field in COLUMNS.items() for value, named in outside(field)]


@pytest.mark.parametrize(("fields", "param", "named"), BAD_FIELDS, ids=lambda value: str(value)[:40])
async def test_bad_fields(
    live: Live, http: aiohttp.ClientSession, fields: dict[str, Any], param: Any, named: Any
) -> None:
    if fields.get("stop") == ["x"] * 100_000 + ["y"]:  # two different strings: many, but not too many
        assert (await ask(live, http, CHAT, {"messages": USER} | fields))[0] == 200
        return
    status, error = await ask(live, http, CHAT, {"messages": USER} | fields)
    assert status == 400, error
    assert error["type"] == "invalid_request_error"
    assert param is None or error["param"] == param
    for part in named:
        assert part in error["message"]
    assert len(error["message"]) < 1000
    assert live.service.admission.taken == 0
    assert not live.fake.seen


UNSUPPORTED: list[tuple[str, Any, list[Any]]] = [
    ("functions", [{"name": "f"}], [None, []]),
    ("length_penalty", 1.1, [None, 1, 1.0]),
    ("best_of", 2, [None, 1]),
    ("suffix", "x", [None, ""]),
    ("echo", True, [None, False]),
    ("chat_template", "{{ x }}", [None]),
    ("ebnf", "root ::= x", [None]),
]


@pytest.mark.parametrize(("field", "value", "neutral"), UNSUPPORTED)
async def test_unsupported_fields_are_named_unless_neutral(
    live: Live, http: aiohttp.ClientSession, field: str, value: Any, neutral: list[Any]
) -> None:
    for path, body in ((CHAT, {"messages": USER}), (COMPLETE, {"prompt": "x", "max_tokens": 3})):
        status, error = await ask(live, http, path, body | {field: value})
        assert (status, error["param"], error["code"]) == (400, field, "unsupported_field")
        for allowed in neutral:
            status, _ = await ask(live, http, path, body | {field: allowed})
            assert status == 200


async def test_text_completions_have_no_tools(live: Live, http: aiohttp.ClientSession) -> None:
    body = {"prompt": "x", "max_tokens": 3, "tools": [{"type": "function"}], "tool_choice": "required"}
    status, error = await ask(live, http, COMPLETE, body)
    assert (status, error["param"], error["code"]) == (400, "tools", "unsupported_field")


async def test_unknown_fields_are_ignored(live: Live, http: aiohttp.ClientSession) -> None:
    extras = {"user": "me", "metadata": {"a": "1"}, "store": False, "service_tier": "auto", "thinking": None, "x": [1]}
    assert (await ask(live, http, CHAT, {"messages": USER} | extras))[0] == 200


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b'{"messages": [', "not JSON"),
        (b"", "missing"),
        (b'{"temperature": NaN1, "messages": []}', "not JSON"),
        (b'{"messages": []} NaN', "not JSON: trailing"),
        (b'{"stop": ["x" NaN], "messages": []}', "not JSON: expected"),
        (b'{"temperature": 1e999, "messages": [{"role": "user", "content": "x"}]}', "temperature"),
        (b"\xff\xfe{}", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'"text"', "body"),
        (b"[1]", "body"),
        (b"null", "body"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_malformed_bodies(live: Live, http: aiohttp.ClientSession, raw: bytes, named: str) -> None:
    status, error = await ask_raw(live, http, raw)
    assert (status, named in error["message"]) == (400, True)


@pytest.mark.parametrize(
    ("raw", "field", "value"),
    [
        (b'{"temperature": NaN, "messages": [{"role": "user", "content": "x"}]}', "temperature", "NaN"),
        (b'{"temperature":\n -Infinity, "messages": []}', "temperature", "-Infinity"),
        (b'{"seed": 1,\n "top_p":Infinity, "messages": []}', "top_p", "Infinity"),
        (b'{"stop": "x: NaN \xc3\xa9", "min_p":-Infinity, "messages": []}', "min_p", "-Infinity"),
        (b'{"stop_token_ids": [1, 2, NaN], "messages": []}', "stop_token_ids[2]", "NaN"),
        (b'{"messages": [{}, {"chat": {"weight": NaN}}]}', "messages[1].chat.weight", "NaN"),
        (b"NaN", None, "NaN"),
    ],
    ids=str,
)
async def test_what_is_no_finite_number_is_named(
    live: Live, http: aiohttp.ClientSession, raw: bytes, field: str | None, value: str
) -> None:
    status, error = await ask_raw(live, http, raw)
    assert (status, error["param"], error["code"]) == (400, field, "malformed_json")
    assert error["message"] == f"{field or 'the body'} is {value}; numbers must be finite"


@pytest.mark.parametrize(
    ("raw", "param", "named"),
    [
        (
            b'{"messages": [{"role": "user", "content": "x\\ud800y"}]}',
            "messages[0].content",
            "holds \\ud800, half of a",
        ),
        (b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "\\udfff"}]}]}', None, "\\udfff"),
        (b'{"messages": [{"\\ud83d": 1}]}', "messages[0]", "\\ud83d"),
        (
            b'{"messages": [{"role": "user", "content": "\xe9"}]}',
            "messages[0].content",
            "the byte 0xE9, which is not UTF-8",
        ),
    ],
    ids=str,
)
async def test_halves_of_characters_are_named(
    live: Live, http: aiohttp.ClientSession, raw: bytes, param: str | None, named: str
) -> None:
    status, error = await ask_raw(live, http, raw)
    assert (status, error["code"]) == (400, "malformed_json")
    assert named in error["message"]
    assert param is None or error["param"] == param


PARTS: list[tuple[Any, str, str]] = [
    ({"type": "image_url", "image_url": {"url": "data:secret"}}, ".type", 'is "image_url"; it must be "text"'),
    ({"type": "text", "text": 5}, ".text", "is 5; it must be a string"),
    ({"type": "text"}, ".text", "is missing"),
    ({"text": "secret"}, ".type", "is missing"),
    ("secret", "", "is a string of 6 characters; it must be an object"),
    ({"type": {"secret": 1}}, ".type", 'is an object of 1 fields; it must be "text"'),
]


@pytest.mark.parametrize(("part", "place", "reported"), PARTS, ids=str)
async def test_a_wrong_part_is_named_alone(
    live: Live, http: aiohttp.ClientSession, part: Any, place: str, reported: str
) -> None:
    fine = {"role": "user", "content": "x"}
    content = [{"type": "text", "text": "what is this?"}, part]
    for path in (CHAT, "/tokenize"):
        status, error = await ask(live, http, path, {"messages": [fine, {"role": "user", "content": content}]})
        where = f"messages[1].content[1]{place}"
        assert (status, error["param"], error["message"]) == (400, where, f"{where} {reported}")


async def test_all_unsupported_fields_are_named_at_once(live: Live, http: aiohttp.ClientSession) -> None:
    fields = {"length_penalty": 2, "modalities": ["audio"], "function_call": "f"}
    fields |= {"functions": [{"name": "f"}], "echo": True, "ebnf": "secret"}
    status, error = await ask(live, http, CHAT, {"messages": USER} | fields)
    assert (status, error["param"], error["code"]) == (400, "functions", "unsupported_field")
    assert error["message"] == (
        "functions, function_call, ebnf, length_penalty, echo, modalities are not supported: leave them out, "
        'or send functions: [], function_call: "auto", length_penalty: 1, echo: false, modalities: ["text"]'
    )


async def ask_raw(live: Live, http: aiohttp.ClientSession, raw: bytes) -> tuple[int, dict[str, Any]]:
    headers = {"content-type": "application/json"}
    async with http.post(live.url + CHAT, data=raw, headers=headers) as answer:
        return answer.status, (await answer.json())["error"]


async def test_the_content_type_is_told(live: Live, http: aiohttp.ClientSession) -> None:
    async with http.post(
        live.url + CHAT, data=json.dumps({"messages": USER}), headers={"content-type": "text/x"}
    ) as answer:
        assert answer.status == 400
        assert "text/x" in (await answer.json())["error"]["message"]


async def test_too_long_prompts(live: Live, http: aiohttp.ClientSession) -> None:
    for path, body in (
        (CHAT, {"messages": [{"role": "user", "content": "a b " * MAX_LENGTH}]}),
        (COMPLETE, {"prompt": "a b " * MAX_LENGTH}),
        (COMPLETE, {"prompt": [7] * MAX_LENGTH}),
        (COMPLETE, {"prompt": [7] * (MAX_LENGTH - 5), "max_tokens": 6}),
    ):
        status, error = await ask(live, http, path, body)
        assert (status, error["code"]) == (400, "context_length_exceeded")
        assert error["message"].startswith(f"This model's maximum context length is {MAX_LENGTH} tokens. However, ")
    assert not live.fake.seen
    assert live.service.admission.taken == 0


@pytest.mark.parametrize(
    ("prompt", "param", "named"),
    [
        ("", "prompt", "empty"),
        ([], "prompt", "empty"),
        ([[]], "prompt", "empty"),
        ([VOCABULARY], "prompt", str(VOCABULARY - 1)),
        ([-1], "prompt[0]", "prompt[0] is -1; it must be at least 0"),
        ([1, "secret"], "prompt[1]", "prompt[1] is a string of 6 characters; it must be an integer"),
        (["a", 5], "prompt[1]", "prompt[1] is 5; it must be a string"),
        ([[1], [2, None]], "prompt[1][1]", "prompt[1][1] is null; it must be an integer"),
        ({"a": "secret"}, "prompt", "prompt is an object of 1 fields; it must be a string, token ids, a list of"),
        ([None], "prompt", "a list of 1 that begins with null"),
        (["x"] * 17, "prompt", "16"),
        (None, "prompt", ""),
    ],
)
async def test_bad_prompts(live: Live, http: aiohttp.ClientSession, prompt: Any, param: Any, named: str) -> None:
    status, error = await ask(live, http, COMPLETE, {"prompt": prompt})
    assert status == 400
    assert param is None or error["param"] == param
    assert named in error["message"]


async def test_unknown_model(live: Live) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        await live.client().chat.completions.create(model="gpt-9", messages=USER)
    assert error.value.code == "model_not_found"
    assert "gpt-9" in error.value.message and "demo" in error.value.message


async def test_require_seed(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(None, {"limits": {"require_seed": True, "temperature_max": 0.5}}) as live:
        status, error = await ask(live, http, CHAT, {"messages": USER, "temperature": 0})
        assert (status, error["param"]) == (400, "seed")
        status, error = await ask(live, http, CHAT, {"messages": USER, "seed": 1})
        assert (status, error["param"]) == (400, "temperature")
        assert (await ask(live, http, CHAT, {"messages": USER, "seed": 1, "temperature": 0.5}))[0] == 200


async def test_large_bodies_are_refused_before_they_are_read(live: Live, http: aiohttp.ClientSession) -> None:
    limit = live.service.config.limits.max_body_bytes
    with pytest.raises(openai.APIStatusError) as error:
        await live.client().chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "x" * 50_000_000}]
        )
    assert error.value.status_code == 413
    assert str(limit) in error.value.message

    async def endless():  # type: ignore[no-untyped-def]
        for _ in range(100):
            yield b" " * 100_000

    async with http.post(live.url + CHAT, data=endless()) as answer:
        assert answer.status == 413
        assert (await answer.json())["error"]["code"] == "request_too_large"


async def test_a_running_stream_notices_nothing(start: Start, abbc: Script, http: aiohttp.ClientSession) -> None:
    async with start(abbc) as live:
        live.fake.turn_seconds = 0.01
        running = asyncio.create_task(
            live.client().completions.create(model="demo", prompt="x", max_tokens=150, extra_body={"ignore_eos": True})
        )
        await come(lambda: live.fake.seen, "the scheduler is not asked")
        for fields, _, _ in BAD_FIELDS:
            await ask(live, http, CHAT, {"messages": USER, "max_tokens": 1} | fields)
        answer = await running
        assert answer.choices[0].text == ("abbc" * 40)[:150]
        assert answer.choices[0].finish_reason == "length"
        await live.idle()


async def test_errors_reach_the_client_with_param_and_code(live: Live) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        await live.client().chat.completions.create(model="demo", messages=USER, temperature=9)
    assert error.value.param == "temperature"
    assert error.value.type == "invalid_request_error"
    assert (await live.client().chat.completions.create(model="demo", messages=USER)).choices[
        0
    ].message.content == ANSWER


async def ask(live: Live, http: aiohttp.ClientSession, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    """Status and error (or answer) of a request; an error must have the one shape."""
    async with http.post(live.url + path, json=body) as answer:
        data = await answer.json()
        if answer.status < 300:
            return answer.status, data
        assert set(data) == {"error"}
        assert set(data["error"]) == {"message", "type", "param", "code"}
        return answer.status, data["error"]

"""/v1/responses over a real socket: the official client, the events on the wire, every ending."""

import json
import logging
import threading
from typing import Any

import aiohttp
import openai
import pytest
from openai.types.responses import Response

from aerie.contracts.errors import Overloaded
from aerie.contracts.messages import Failed
from tests.patience import come
from tests.sampling_values import OTHERS
from tests.server.conftest import ANSWER, Live, Start, silent
from tests.server.fake_scheduler import MAX_LENGTH, Script, pausing
from tests.server.openai.test_events import failing_after
from tests.server.responses.schema import RESPONSE, check_response, check_stream

PATH = "/v1/responses"
HI = {"role": "user", "content": "hi"}
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}


async def events_of(http: aiohttp.ClientSession, live: Live, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, whose framing is checked."""
    async with http.post(live.url + PATH, json={"input": "hi", "stream": True} | body) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.headers["content-type"].startswith("text/event-stream")
        return parsed(await answer.text())


def parsed(text: str) -> list[dict[str, Any]]:
    frames = [frame for frame in text.split("\n\n") if not frame.startswith(":")]
    assert frames[-2:] == ["data: [DONE]", ""]
    events = []
    for frame in frames[:-2]:
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


async def test_a_response_is_whole_and_has_every_key(live: Live, http: aiohttp.ClientSession) -> None:
    assert len(RESPONSE["required"]) == 32
    async with http.post(live.url + PATH, json={"input": "Say hello", "instructions": "Be brief"}) as answer:
        response = await answer.json()
    check_response(response)
    assert Response.model_validate(response | {"usage": None}).output_text == ANSWER
    assert response["status"] == "completed" and response["completed_at"] >= response["created_at"]
    assert response["instructions"] == "Be brief"
    request = live.fake.seen[0]
    assert request.prompt == live.ids("<|bos|><|system|>Be brief<|end|><|user|>Say hello<|end|><|assistant|>")
    assert request.sampling.max_tokens == MAX_LENGTH - len(request.prompt)
    usage = response["usage"]
    assert usage["output_tokens"] == len(live.ids(ANSWER)) + 1
    assert usage["input_tokens"] == len(request.prompt)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_tokens_details"] == {"cached_tokens": 4}
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    assert usage["speculation"]["steps"] > 0
    await live.idle()


async def test_the_official_client_creates_streams_and_parses(live: Live) -> None:
    responses = live.client().responses
    whole = await responses.create(
        model="demo", input="hi", extra_body={"seed": 7, "top_k": 3, "speculation": {"max_draft_tokens": 2}}
    )
    assert (whole.output_text, whole.status, whole.model) == (ANSWER, "completed", "demo")
    request = live.fake.seen[0]
    assert (request.sampling.seed, request.sampling.top_k, request.speculation.max_draft_tokens) == (7, 3, 2)
    async with responses.stream(model="demo", input="hi") as stream:
        pieces = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(pieces) == final.output_text == ANSWER and len(pieces) > 1
    raw = [event async for event in await responses.create(model="demo", input="hi", stream=True)]
    assert (raw[0].type, raw[-1].type) == ("response.created", "response.completed")
    assert raw[-1].response.usage.output_tokens == whole.usage.output_tokens


async def test_every_sampling_field_reaches_the_engine_as_a_chat_s_does(
    live: Live, http: aiohttp.ClientSession
) -> None:
    tokens = {"logit_bias": {"7": 2.5}, "allowed_token_ids": [7, 8], "stop_token_ids": [9], "min_tokens": 2}
    fields: dict[str, Any] = {**OTHERS, **tokens, "seed": 5, "ignore_eos": True}
    for path, asked in (("responses", {"input": "hi"}), ("chat/completions", {"messages": [HI]})):
        limit = {"max_output_tokens" if path == "responses" else "max_tokens": 4}
        async with http.post(f"{live.url}/v1/{path}", json={**asked, **fields, **limit}) as answer:
            assert answer.status == 200, await answer.text()
            if path == "responses":
                response = await answer.json()
    ours, chats = (request.sampling for request in live.fake.seen)
    assert ours == chats and ours.logit_bias == {7: 2.5} and ours.stop_token_ids == (9,)
    assert {name: getattr(ours, name) for name in OTHERS} == OTHERS
    repeated = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
    assert {name: response[name] for name in repeated} == {name: OTHERS[name] for name in repeated}


async def test_a_stream_says_what_the_whole_answer_says(live: Live, http: aiohttp.ClientSession) -> None:
    body = {"top_logprobs": 2, "metadata": {"a": "b"}, "user": "u", "temperature": 0, "seed": 3}
    last = check_stream(await events_of(http, live, **body))
    async with http.post(live.url + PATH, json={"input": "hi"} | body) as answer:
        whole = await answer.json()
    changing = {"id", "created_at", "completed_at", "output"}
    assert {key: whole[key] for key in whole.keys() - changing} == {key: last[key] for key in last.keys() - changing}
    assert last["output"][0]["content"] == whole["output"][0]["content"]
    entries = last["output"][0]["content"][0]["logprobs"]
    assert len(entries) == last["usage"]["output_tokens"] and len(entries[0]["top_logprobs"]) == 2
    assert (last["metadata"], last["user"], last["temperature"]) == ({"a": "b"}, "u", 0.0)


async def test_a_limit_makes_it_incomplete(start: Start, http: aiohttp.ClientSession, abbc: Script) -> None:
    async with start(abbc) as live:
        last = check_stream(await events_of(http, live, max_output_tokens=5))
        assert (last["status"], last["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert last["output"][-1]["status"] == "incomplete" and last["completed_at"] is None
        assert last["output"][-1]["content"][0]["text"] == "abbca"
        whole = await live.client().responses.create(model="demo", input="hi", max_output_tokens=5)
        assert (whole.status, whole.output_text, whole.usage.output_tokens) == ("incomplete", "abbca", 5)


async def test_a_probe_with_nothing_and_one_token_is_answered(
    start: Start, http: aiohttp.ClientSession, abbc: Script
) -> None:
    async with start(abbc) as live:
        for nothing in ("", []):
            last = check_stream(await events_of(http, live, input=nothing, max_output_tokens=1))
            assert last["output"][0]["content"][0]["text"] == "a"
            assert live.fake.seen[-1].prompt == live.ids("<|bos|><|user|><|end|><|assistant|>")


async def test_an_answer_without_text_is_an_empty_message(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(lambda request: iter([[1]])) as live:
        last = check_stream(await events_of(http, live))
        assert [item["content"][0]["text"] for item in last["output"]] == [""]
        assert (await live.client().responses.create(model="demo", input="hi")).output_text == ""


async def test_stop_strings_end_it_completed(live: Live, http: aiohttp.ClientSession) -> None:
    last = check_stream(await events_of(http, live, stop=" quick"))
    assert (last["status"], last["output"][0]["content"][0]["text"]) == ("completed", ANSWER.partition(" quick")[0])
    await live.idle()


@pytest.mark.parametrize("ending", ["fails", "dies", "drains", "is given up", "breaks"])
async def test_a_stream_that_cannot_go_on_fails_once(
    start: Start, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    go = threading.Event()
    failed = Failed(id="", code="deadline_exceeded", message="too late", status=503)
    body = {"input": "hi", "stream": True}
    async with (
        start(pausing(failing_after([[20, 21], [22]], failed), go)) as live,
        http.post(live.url + PATH, json=body) as answer,
    ):
        text = (await answer.content.readuntil(b"output_text.delta")).decode()
        if ending == "dies":
            live.fake.kill()
        elif ending == "drains":
            live.service.engine.fail_all(Overloaded("shutting down", code="draining"))
        elif ending == "is given up":
            live.service.engine.abort(live.fake.seen[0].id)
        else:  # elsewhere the scheduler would go on to fail before it hears
            if ending == "breaks":
                monkeypatch.setattr("aerie.server.responses.items.Items.take", lambda *_: 1 / 0)
            go.set()
        text += (await answer.content.read()).decode()
    last = check_stream(parsed(text))
    said = {"fails": "deadline_exceeded", "dies": "engine_dead", "drains": "draining", "is given up": "aborted"}
    assert last["error"]["code"] == "server_error"
    assert last["error"]["type"] == said.get(ending, "server_error")
    assert last["usage"] is None
    assert last["output"][0]["content"][0]["text"].startswith(live.tokenizer.decode([20, 21]))


@pytest.mark.parametrize("stream", [False, True])
async def test_an_early_failure_is_a_status(start: Start, stream: bool) -> None:
    failed = Failed(id="", code="queue_timeout", message="waited too long", status=503)
    async with start(failing_after([], failed)) as live:
        with pytest.raises(openai.InternalServerError) as error:
            await live.client().responses.create(model="demo", input="hi", stream=stream)
        assert (error.value.status_code, error.value.code) == (503, "queue_timeout")
        await live.idle()


async def test_silence_is_pinged_with_comments(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(silent, {"server": {"ping_seconds": 0.05}}) as live:
        async with http.post(live.url + PATH, json={"input": "hi", "stream": True}) as answer:
            lines = [(await answer.content.readline()).decode() for _ in range(12)]
        assert lines[0] == "event: response.created\n"
        assert lines.count(": ping\n") >= 2
        await live.idle()
        assert live.fake.aborted == [live.fake.seen[0].id], "its reader left"


async def test_nothing_is_kept(live: Live, http: aiohttp.ClientSession) -> None:
    answer = await live.client().responses.create(model="demo", input="hi", store=True)
    assert answer.model_extra.get("store", getattr(answer, "store", None)) is False, "the truth"
    for method, path in (
        ("GET", f"/{answer.id}"),
        ("DELETE", f"/{answer.id}"),
        ("POST", f"/{answer.id}/cancel"),
        ("GET", f"/{answer.id}/input_items"),
    ):
        async with http.request(method, live.url + PATH + path) as reply:
            assert reply.status == 404
            assert "keeps no responses" in (await reply.json())["error"]["message"]
    with pytest.raises(openai.NotFoundError):
        await live.client().responses.retrieve(answer.id)


async def test_tools_of_other_types_are_left_out_with_a_line_in_the_log(
    live: Live, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    tools = [{"type": "web_search"}, {"type": "custom", "name": "patch", "format": {"type": "grammar"}}]
    tools += [{"type": "namespace", "name": "n", "tools": []}, {"type": "image_generation"}]
    with caplog.at_level(logging.INFO, "aerie.server"):
        last = check_stream(await events_of(http, live, tools=tools))
    assert last["tools"] == []
    (line,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert "custom, image_generation, namespace, web_search" in line


async def test_it_counts_and_is_logged_like_the_other_routes(
    live: Live, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "aerie.requests"):
        async with http.post(live.url + PATH, json={"input": "hi"}, headers={"x-request-id": "mine"}) as answer:
            assert answer.headers["x-request-id"] == "mine"
            assert (await answer.json())["id"] == "resp_mine"
        await live.idle()
        await come(lambda: bool(caplog.records), "the request is not logged")
    line = json.loads(caplog.records[-1].getMessage())
    assert (line["request"], line["outcome"], line["finish"]) == ("mine", "finished", ["stop"])
    assert 'aerie:request_success_total{finished_reason="stop",model_name="demo"} 1.0' in (
        live.service.metrics.render().decode()
    )


async def test_keys_and_origins_are_checked(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(None, {"server": {"api_key": "k", "cors_origins": ["https://page.example"]}}) as live:
        body = {"json": {"input": "hi"}, "headers": {"origin": "https://page.example"}}
        async with http.post(live.url + PATH, **body) as answer:
            assert answer.status == 401
        body["headers"] |= {"authorization": "Bearer k"}
        async with http.post(live.url + PATH, **body) as answer:
            assert answer.status == 200
            assert answer.headers["access-control-allow-origin"] == "https://page.example"

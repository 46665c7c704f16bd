"""Streams that do not go well: silence, failure, readers that do not read."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import openai
import pytest

from aerie.contracts.messages import Failed, Generate
from tests.patience import come, quickest_of
from tests.server.conftest import Live, Start, silent
from tests.server.fake_scheduler import Said, Script, pausing

USER = [{"role": "user", "content": "hi"}]


def failing_after(runs: list[list[int]], failed: Failed) -> Script:
    def script(request: Generate) -> Iterator[Said]:
        yield from runs
        yield failed

    return script


async def test_a_failure_in_the_stream_is_an_event(start: Start, http: aiohttp.ClientSession) -> None:
    failed = Failed(id="", code="deadline_exceeded", message="too late", status=503)
    begun = threading.Event()
    async with start(pausing(failing_after([[20, 21], [22]], failed), begun)) as live:
        async with http.post(f"{live.url}/v1/chat/completions", json={"messages": USER, "stream": True}) as answer:
            assert answer.status == 200
            begun.set()
            lines = [line for line in (await answer.text()).split("\n") if line]
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2].removeprefix("data: ")) == {
            "error": {"message": "too late", "type": "timeout_error", "param": None, "code": "deadline_exceeded"}
        }
        with pytest.raises(openai.APIError, match="too late"):
            async for _ in await live.client().chat.completions.create(model="demo", messages=USER, stream=True):
                pass
        await live.idle()


@pytest.mark.parametrize(("code", "sent"), [("deadline_exceeded", 1), ("queue_timeout", 2)])
async def test_what_took_too_long_is_not_sent_again_what_waited_is(start: Start, code: str, sent: int) -> None:
    async with start(failing_after([], Failed(id="", code=code, message="late", status=503))) as live:
        with pytest.raises(openai.InternalServerError) as error:
            await live.client().with_options(max_retries=1).chat.completions.create(model="demo", messages=USER)
        assert error.value.code == code
        assert len(live.fake.seen) == sent
        headers = error.value.response.headers
        assert ("retry-after" in headers, headers.get("x-should-retry")) == (sent > 1, None if sent > 1 else "false")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_early_failure_is_a_status(start: Start, stream: bool) -> None:
    failed = Failed(id="", code="queue_timeout", message="waited too long", status=503)
    async with start(failing_after([], failed)) as live:
        with pytest.raises(openai.InternalServerError) as error:
            await live.client().chat.completions.create(model="demo", messages=USER, stream=stream)
        assert error.value.status_code == 503
        assert error.value.code == "queue_timeout"
        assert "retry-after" in error.value.response.headers
        await live.idle()
        reported = live.service.metrics.render().decode()
        assert 'aerie:request_failure_total{code="queue_timeout",model_name="demo"} 1.0' in reported
        assert 'aerie:request_success_total{finished_reason="abort",model_name="demo"} 0.0' in reported, "nobody left"


async def test_one_failed_choice_aborts_the_others(start: Start) -> None:
    def script(request: Generate) -> Iterator[Said]:
        yield [20]
        while request.choice == 0:
            yield None
        yield Failed(id="", code="internal", message="broken row")

    async with start(script) as live:
        with pytest.raises(openai.InternalServerError, match="broken row"):
            await live.client().chat.completions.create(model="demo", messages=USER, n=2)
        await live.idle()
        assert live.fake.aborted == [request.id for request in live.fake.seen if request.choice == 0]


async def test_silent_streams_are_pinged(start: Start, http: aiohttp.ClientSession) -> None:
    async with start(silent, {"server": {"ping_seconds": 0.05}}) as live:
        async with http.post(f"{live.url}/v1/chat/completions", json={"messages": USER, "stream": True}) as answer:
            assert answer.status == 200
            lines = [(await answer.content.readline()).decode() for _ in range(8)]
        assert lines[0].startswith("data: ") and '"role":"assistant"' in lines[0]
        assert lines.count(": ping\n") >= 3
        await live.idle()


async def test_a_scheduler_that_forgets_a_request_is_not_waited_for(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerie.server.openai.generation.GRACE_SECONDS", 0.1)
    async with start(silent, {"limits": {"total_seconds": 0.2}}) as live:
        with pytest.raises(openai.InternalServerError) as error:
            await live.client().chat.completions.create(model="demo", messages=USER)
        assert error.value.code == "deadline_exceeded"
        await live.idle()
        assert live.fake.aborted == [live.fake.seen[0].id]


async def test_a_stop_string_does_not_wait_for_a_deaf_scheduler(
    start: Start, abbc: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerie.server.openai.generation.ACCOUNT_SECONDS", 0.1)

    def ignores_aborts(request: Generate) -> Iterator[Said]:
        yield next(abbc(request))
        yield [21, 21]
        while True:
            yield None

    async with start(ignores_aborts) as live:
        monkeypatch.setattr(live.service.engine, "abort", lambda id: None)
        answer = await live.client().completions.create(model="demo", prompt="x", max_tokens=99, stop="b")
        assert answer.choices[0].text == "a"
        assert answer.usage.completion_tokens == 2
        await live.idle()


async def test_a_reader_that_sleeps_holds_nobody_up(start: Start, abbc: Script) -> None:
    async def ask() -> float:
        begun = time.monotonic()
        answer = await live.client().completions.create(model="demo", prompt="x", max_tokens=100)
        assert answer.usage.completion_tokens == 100
        return time.monotonic() - begun

    async with start(abbc) as live:
        host, port = live.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        body: dict[str, Any] = {"prompt": "x", "max_tokens": 500, "stream": True, "ignore_eos": True, "n": 16}
        writer.write(_post(body | {"logprobs": 5, "return_token_ids": True}))
        await come(lambda: len(live.fake.seen) == 16, "the scheduler is not asked")
        assert await quickest_of(ask, 5) < 5
        writer.close()
        await live.idle()


async def test_the_server_never_ends_a_stream_for_a_bug(
    live: Live, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("aerie.server.openai.answers.ChatAnswers.chunks", broken)
    async with http.post(f"{live.url}/v1/chat/completions", json={"messages": USER, "stream": True}) as answer:
        text = await answer.text()
    assert '"type":"server_error"' in text and "secret" not in text
    assert text.endswith("data: [DONE]\n\n")
    await live.idle()


def _post(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    return head.encode() + b"\r\n\r\n" + data

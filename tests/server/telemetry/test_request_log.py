"""The line of a finished request: JSON and nothing else, whole for every way to end, without what was said."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from aerie.contracts.messages import Failed, Generate, Usage
from aerie.contracts.sampling import SamplingParams
from aerie.server.telemetry.account import Account, acceptance_length, total
from aerie.server.telemetry.request_log import log_request, logger, write_lines_bare
from tests.patience import come
from tests.server.conftest import Live, Start, silent
from tests.server.fake_scheduler import Said

USER = [{"role": "user", "content": "very private"}]
KEYS = {
    "event", "time", "request", "model", "outcome", "finish", "seed", "temperature", "prompt_tokens",
    "completion_tokens", "cached_tokens", "steps", "drafted", "accepted", "accepted_per_position",
    "acceptance_length", "preemptions", "queue_seconds", "prefill_seconds", "first_seconds", "decode_seconds",
    "seconds",
}  # fmt: skip


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What the process would have written to stderr."""
    handlers, propagate, level = logger.handlers, logger.propagate, logger.level
    stream = io.StringIO()
    write_lines_bare(stream)
    logger.setLevel(logging.INFO)
    yield stream
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)


def lines(written: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


def usage(**counts: Any) -> Usage:
    return Usage(**({"prompt_tokens": 5, "completion_tokens": 7} | counts))


def account(*parts: Usage, **changes: Any) -> Account:
    request = Generate(id="r", prompt=[1], sampling=SamplingParams(seed=7, temperature=0.5))
    fields: dict[str, Any] = {
        "id": "r",
        "model": "m",
        "outcome": "finished",
        "requests": [request] * len(parts),
        "finish": ["stop"] * len(parts),
        "usage": list(parts),
        "parent": None,
        "began": 10.0,
        "first": 10.25,
        "last": 11.0,
        "ended": 11.5,
    }
    return Account(**(fields | changes))


def test_a_line_has_every_field_and_adds_up(written: io.StringIO) -> None:
    one = usage(steps=4, drafted=16, accepted=6, accepted_per_position=[4, 2], queue_seconds=0.5, cached_tokens=3)
    other = usage(steps=2, drafted=8, accepted=3, accepted_per_position=[1, 1, 1], queue_seconds=0.25)
    log_request(account(one, other), None)
    [line] = lines(written)
    assert set(line) == KEYS
    assert (line["seed"], line["temperature"], line["finish"]) == (7, 0.5, ["stop", "stop"])
    assert (line["steps"], line["drafted"], line["accepted"], line["cached_tokens"]) == (6, 24, 9, 3)
    assert line["accepted_per_position"] == [5, 3, 1] and line["acceptance_length"] == 2.5
    assert (line["first_seconds"], line["decode_seconds"], line["seconds"]) == (0.25, 0.75, 1.5)
    assert line["queue_seconds"] == 0.5, "choices run side by side: times are the longest, not the sum"


def test_nothing_came_means_null_not_zero(written: io.StringIO) -> None:
    log_request(account(usage(completion_tokens=0), first=None, outcome="left", finish=[None]), None)
    [line] = lines(written)
    assert line["first_seconds"] is None and line["decode_seconds"] is None and line["acceptance_length"] is None
    assert acceptance_length(total([])) is None


def test_text_stays_on_one_line(written: io.StringIO) -> None:
    log_request(account(usage()), ["first\nsecond\r\n🦅 \u2028"])
    assert len(written.getvalue().splitlines()) == 1 and written.getvalue().isascii()
    assert lines(written)[0]["prompts"] == ["first\nsecond\r\n🦅 \u2028"]


def failing(request: Generate) -> Iterator[Said]:
    yield [40]
    yield Failed(id=request.id, code="lane_error", message="the lane broke")


async def test_every_way_to_end_has_its_line(start: Start, written: io.StringIO, http: aiohttp.ClientSession) -> None:
    async def ask(live: Live, **fields: Any) -> None:
        async with http.post(f"{live.url}/v1/chat/completions", json={"messages": USER, **fields}) as answer:
            await answer.read()

    async with start() as live:
        await ask(live, n=2, seed=3)
        await ask(live, stream=True, max_tokens=2)
    async with start(failing) as live:
        await ask(live)
    async with start(silent) as live:
        leaving = asyncio.create_task(ask(live))
        await come(lambda: live.fake.seen, "the scheduler is not asked")
        leaving.cancel()
        await live.idle()
    reported = lines(written)
    assert [line["outcome"] for line in reported] == ["finished", "finished", "lane_error", "left"]
    assert [line["finish"] for line in reported] == [["stop", "stop"], ["length"], [None], [None]]
    assert all(set(line) == KEYS for line in reported)
    assert reported[0]["seed"] == 3 and len(reported[0]["completion_tokens"]) == 2
    assert "private" not in written.getvalue()


async def test_prompts_are_told_only_where_that_is_asked_for(start: Start, written: io.StringIO) -> None:
    async with start(settings={"server": {"log_prompts": True}}) as live:
        await live.client().chat.completions.create(model="demo", messages=USER)
    [line] = lines(written)
    assert "very private" in line["prompts"][0] and set(line) == KEYS | {"prompts"}
    async with start(settings={"server": {"log_requests": False}}) as live:
        await live.client().chat.completions.create(model="demo", messages=USER)
    assert len(lines(written)) == 1, "a deployment may be silent"

"""The load generator against a server whose times are known."""

import asyncio
import itertools
import math
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial

import aiohttp
import pytest

from aerie.bench.loads.client import Endpoint, _retry_after, _take, ask, converse
from aerie.bench.loads.load import Size, closed_loop, open_loop
from aerie.bench.loads.workloads import Conversation
from aerie.bench.measured import Measured, summarize
from tests.bench.fake_server import Manners, serving
from tests.patience import PATIENCE, quickest_of

SLACK = 0.4
"""Seconds that a loaded machine may add; short enough that a wrong definition still shows. One that stands still for
longer is measured again."""
TALKS = [Conversation((f"question {number}",), max_tokens=9) for number in range(40)]


async def one(manners: Manners):
    async with serving(manners) as url, aiohttp.ClientSession() as session:
        return await ask(session, Endpoint(url, "fake"), {"messages": []})


async def test_times_and_tokens_are_the_server_s() -> None:
    first, later = 0.1, 4 * 0.05

    async def added() -> float:
        """By the machine, at most."""
        result = await one(Manners(ttft=first, gap=0.05, pieces=5, per_piece=3))
        assert result.error is None and result.tokens == 15 and result.prompt_tokens == 7 and len(result.gaps) == 4
        assert first <= result.ttft and first + later <= result.e2e and result.tpot is not None
        least = later / 14 * 0.9
        return max(
            result.ttft - first, result.e2e - first - later, 14 * result.tpot - later, 1e3 * (least - result.tpot)
        )

    assert await quickest_of(added, SLACK) < SLACK, "by tokens, not by pieces"


async def test_times_agree_with_the_server_s_own_clock() -> None:
    """Both sides share one clock and one loop, so a busy machine delays both alike and a wrong definition shows."""

    async def off() -> float:
        """By how much the two clocks disagree, where 1 is too much."""
        manners = Manners(ttft=0.2, gap=0.05, pieces=9, per_piece=4)
        result = await one(manners)
        (sent,) = manners.sent
        span = sent[-1] - sent[0]
        wrong = {"by pieces": span / 8, "by all tokens, from the start": (sent[-1] - result.sent) / 36}
        near = min(abs(other - result.tpot) / result.tpot for other in wrong.values())
        return max(
            abs(result.tpot * 35 / span - 1) / 0.05, abs(result.ttft - (sent[0] - result.sent)) / 0.03, 0.15 / near
        )

    assert await quickest_of(off, 1) < 1


@pytest.mark.parametrize(
    ("manners", "error"),
    [
        (Manners(cut_after=2), "truncated"),
        (Manners(error_after=1), "stream error"),
        (Manners(status=500), "http 500"),
        (Manners(refuse=99, wait="0"), "refused"),
        (Manners(reported=False), "no usage"),
    ],
)
async def test_failures_are_named(manners: Manners, error: str) -> None:
    result = await one(manners)
    assert result.error == error


async def test_a_conversation_s_fields_are_sent() -> None:
    talk = Conversation(("question",), max_tokens=9, fields='{"tool_choice": "required"}')
    manners = Manners()
    async with serving(manners) as url, aiohttp.ClientSession() as session:
        await converse(session, Endpoint(url, "fake"), talk, seed=1)
    assert [body["tool_choice"] for body in manners.bodies] == ["required"]


def test_a_call_s_arguments_are_text() -> None:
    result = Measured(sent=0.0)
    calls = [
        {"index": 0, "function": {"name": "look", "arguments": '{"a"'}},
        {"index": 0, "function": {"arguments": ":1}"}},
    ]
    for call in calls:
        _take({"choices": [{"delta": {"tool_calls": [call]}}]}, result)
    assert result.text == 'look{"a":1}' and len(result.pieces) == 2


@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_is_waited_out_and_the_wait_counts(status: int) -> None:
    result = await one(Manners(refuse=2, refusal=status, wait="0.1"))
    assert result.error is None and result.retries == 2 and result.ttft > 0.2


def test_a_date_says_when_to_come_back() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    assert 3600 - 2 * PATIENCE < _retry_after(soon, 0) <= 3600
    assert _retry_after("2.5", 0) == 2.5 and _retry_after("-3", 0) == 0


@pytest.mark.parametrize("said", [None, "soon", "Fri, 01 May"])
def test_a_refusal_that_says_nothing_is_met_with_growing_patience(said: str | None) -> None:
    waits = [_retry_after(said, retries) for retries in range(8)]
    assert all(0.75 * most <= wait <= most for wait, most in zip(waits, (0.5, 1, 2, 4, 8, 8, 8, 8), strict=True))


async def test_a_kept_connection_that_the_server_closes_is_opened_again() -> None:
    """As a server does that gives each connection so many requests: it closes as the next one comes."""
    manners = Manners(ttft=0, gap=0, pieces=2, hang_up=1)
    result = await one(manners)
    assert result.error is None and result.retries == 1 and result.tokens == 2
    assert (await one(Manners(hang_up=2))).error == "ServerDisconnectedError"


async def test_a_request_is_sent_again_on_a_connection_of_its_own() -> None:
    """Else it would meet one more of those that the server has closed, and count as failed."""
    manners = Manners(ttft=0.05, gap=0, pieces=2, closes=True)
    async with serving(manners) as url, aiohttp.ClientSession() as session:
        at = Endpoint(url, "fake")
        kept = await asyncio.gather(*[ask(session, at, {"messages": []}) for _ in range(3)])
        again = await ask(session, at, {"messages": []})
    assert [one.error for one in kept] == [None] * 3 and [one.retries for one in kept] == [0] * 3
    assert again.error is None and again.retries == 1 and again.tokens == 2


async def test_nobody_listens() -> None:
    async with aiohttp.ClientSession() as session:
        result = await ask(session, Endpoint("http://127.0.0.1:9", "fake"), {"messages": []})
    assert result.error is not None and "Connect" in result.error


async def test_a_closed_loop_keeps_its_places_taken() -> None:
    async def slowness() -> float:
        """How many times longer than the server's own times make it."""
        manners = Manners(ttft=0.02, gap=0.01, pieces=5)
        async with serving(manners) as url:
            at = Endpoint(url, "fake", fields={"temperature": 0.5})
            reported = await closed_loop(at, TALKS, concurrency=8, size=Size(8), seed=3, progress=lambda ended: None)
        found = summarize(*reported)
        assert len(reported[0]) == 40 and found["requests"] == 32 and manners.most_open <= 8
        assert {body["seed"] for body in manners.bodies} == set(range(3, 43))
        assert manners.bodies[0]["temperature"] == 0.5
        expected = 8 * 5 / (0.02 + 4 * 0.01)
        slower = expected / found["output_tokens_per_s"]
        return slower if slower > 1 / 1.1 and manners.most_open == 8 else math.inf

    assert await quickest_of(slowness, 10) < 10


@pytest.mark.parametrize("open", [False, True])
async def test_a_load_lasts_its_count_and_its_seconds(open: bool) -> None:
    """More conversations are taken while the window is too short, and none where both are reached."""
    manners = Manners(ttft=0, gap=0, pieces=1)
    async with serving(manners) as url:
        at = Endpoint(url, "fake")

        async def sent(size: Size) -> tuple[int, float]:
            kind = partial(open_loop, rate=400, burstiness=1.0) if open else partial(closed_loop, concurrency=2)
            results, window = await kind(at, itertools.cycle(TALKS), size=size, seed=1, progress=lambda ended: None)
            return len(results), window.seconds

        assert (await sent(Size(2, count=7)))[0] == 7
        many, seconds = await sent(Size(2, count=7, seconds=0.3))
    assert many > 7 and seconds >= 0.2


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    """Forty answers of half a second, one after the other, would take twenty seconds."""

    async def taking() -> float:
        manners = Manners(ttft=0.5, pieces=1)
        async with serving(manners) as url:
            began = time.monotonic()
            results, window = await open_loop(
                Endpoint(url, "fake"),
                TALKS,
                rate=100,
                burstiness=1.0,
                size=Size(4),
                seed=1,
                progress=lambda ended: None,
            )
            took = time.monotonic() - began
        assert len(results) == 40
        return took if manners.most_open > 10 and window.seconds > 0.1 else math.inf

    assert await quickest_of(taking, 5) < 5


async def test_turns_carry_the_answers_before_them() -> None:
    manners = Manners(ttft=0, gap=0, pieces=2)
    talk = Conversation(("first", "second"), max_tokens=4, system="be brief")
    async with serving(manners) as url, aiohttp.ClientSession() as session:
        results = await converse(session, Endpoint(url, "fake"), talk, seed=1)
    assert len(results) == 2
    assert [message["role"] for message in manners.bodies[1]["messages"]] == ["system", "user", "assistant", "user"]
    assert manners.bodies[1]["messages"][2]["content"] == "word word "

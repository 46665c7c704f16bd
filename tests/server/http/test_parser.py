"""Connections, by hand: what is never complete ends, what is quiet makes room, and HTTP/1.0 gets no chunks."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from aerie.server.text.tokenizer import Tokenizer
from tests.patience import PATIENCE, come
from tests.server.conftest import ANSWER, Live, Start, answering, silent
from tests.server.fake_scheduler import Script, pausing

HALF_HEAD = b"GET /health HTTP/1.1\r\nHost: x\r\n"
HALF_BODY = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
HALF_CHUNKS = HALF_BODY.replace(b"Content-Length: 100", b"Transfer-Encoding: chunked")[:-1] + b"5\r\n{"
WHOLE = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
LATE: dict[str, dict[str, object]] = {"server": {"header_seconds": 0.1, "body_seconds": 0.1}}


class Socket:
    """A connection that says what it is told to, as bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, bytes, bytes]:
        """Status, head and body of an answer that has a length."""
        async with asyncio.timeout(PATIENCE):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            return int(head.split()[1]), head, await self.reader.readexactly(length)

    async def refused(self) -> dict[str, Any]:
        """The error of an answer, with its status, after which the connection is closed."""
        status, head, body = await self.answer()
        assert b"connection: close" in head.lower()
        await self.closed()
        return {"status": status, **json.loads(body)["error"]}

    async def rest(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read()

    async def closed(self) -> None:
        assert await self.rest() == b""


Connect = Callable[[Live], Awaitable[Socket]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    async with contextlib.AsyncExitStack() as opened:

        async def connect(live: Live) -> Socket:
            host, port = live.url.removeprefix("http://").split(":")
            socket = Socket(*await asyncio.open_connection(host, int(port)))
            opened.callback(socket.writer.close)
            return socket

        yield connect


@pytest.mark.parametrize("began", [HALF_HEAD, b"G", HALF_BODY, HALF_CHUNKS])
@pytest.mark.parametrize("before", [b"", WHOLE])
async def test_a_request_that_is_never_complete_ends(
    connect: Connect, start: Start, began: bytes, before: bytes
) -> None:
    async with start(None, LATE) as live:
        slow = await connect(live)
        if before:
            slow.say(before)
            assert (await slow.answer())[0] == 200
        slow.say(began)
        error = await slow.refused()
        assert (error["status"], error["code"]) == (408, "request_timeout")
        assert ("server.body_seconds" if b"\r\n\r\n" in began else "server.header_seconds") in error["message"]
        assert live.service.admission.taken == 0


@pytest.mark.parametrize("said", [b"", WHOLE + b"\r\n"])
async def test_a_connection_that_asks_for_nothing_is_closed(connect: Connect, start: Start, said: bytes) -> None:
    async with start(None, {"server": LATE["server"] | {"keep_alive_seconds": 1}}) as live:
        idle = await connect(live)
        if said:
            idle.say(said)
            await idle.answer()
        await idle.closed()


async def test_the_rest_of_a_refused_body_is_not_waited_for(
    connect: Connect, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerie.server.http.parser.LINGER_SECONDS", 0.1)
    async with start(None, {"server": {"api_key": "k"}}) as live:
        slow = await connect(live)
        slow.say(HALF_BODY)
        assert (await slow.answer())[0] == 401
        await slow.closed()


async def test_a_refused_body_may_end_and_the_connection_goes_on(connect: Connect, start: Start) -> None:
    async with start(None, {"server": {"api_key": "k"}}) as live:
        client = await connect(live)
        client.say(HALF_BODY)
        assert (await client.answer())[0] == 401
        client.say(b" " * 99 + WHOLE)
        assert (await client.answer())[0] == 200


async def test_an_answer_may_take_longer_than_its_request(connect: Connect, start: Start, tokenizer: Tokenizer) -> None:
    """Even with the next request's head begun."""
    go = threading.Event()
    async with start(pausing(answering(tokenizer), go), LATE) as live:
        patient = await connect(live)
        body = b'{"prompt": "x", "max_tokens": 100}'
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        )
        patient.say(head % len(body) + body + WHOLE[:9])
        await come(lambda: live.fake.seen, "the scheduler is not asked")
        for _ in range(3):
            slow = await connect(live)
            slow.say(HALF_HEAD)
            await slow.refused()  # the deadlines of a request have passed
        go.set()
        status, _, text = await patient.answer()
        assert (status, json.loads(text)["choices"][0]["text"]) == (200, ANSWER)
        patient.say(WHOLE[9:])
        assert (await patient.answer())[0] == 200


@pytest.mark.parametrize("said", [b"", HALF_HEAD, HALF_BODY, WHOLE])
async def test_many_quiet_connections_lock_nobody_out(
    connect: Connect, start: Start, http: aiohttp.ClientSession, said: bytes
) -> None:
    """Their deadlines are far away: a new connection takes the place of the one that has been quiet for longest."""
    async with start(None, {"server": {"max_connections": 10}}) as live:
        quiet = []
        for _ in range(30):
            quiet.append(await connect(live))
            quiet[-1].say(said)
            if said == WHOLE:
                await quiet[-1].answer()
        for _ in range(3):
            async with aiohttp.ClientSession() as other, other.get(f"{live.url}/health") as answer:
                assert answer.status == 200
        for one in quiet[:20]:
            await one.rest()  # to its end
            assert one.reader.at_eof()


async def test_no_connection_is_closed_that_waits_for_its_answer(
    connect: Connect, start: Start, http: aiohttp.ClientSession
) -> None:
    async with start(silent, {"server": {"max_connections": 2}}) as live:
        asked = {"prompt": "x"}
        waiting = [asyncio.create_task(http.post(f"{live.url}/v1/completions", json=asked)) for _ in range(2)]
        await come(lambda: len(live.fake.seen) == 2, "the scheduler is not asked")
        error = await (await connect(live)).refused()
        assert (error["status"], error["type"], error["code"]) == (503, "overloaded_error", "too_many_connections")
        assert "2 connections" in error["message"]
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        await live.idle()


async def test_a_stream_to_http_1_0_has_no_chunks(connect: Connect, start: Start, abbc: Script) -> None:
    async with start(abbc) as live:
        body = b'{"prompt": "x", "max_tokens": 40, "stream": true}'
        head = b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        old = await connect(live)
        old.say(head % len(body) + body)
        reported, _, events = (await old.rest()).partition(b"\r\n\r\n")
        assert reported.startswith(b"HTTP/1.1 200") and b"transfer-encoding" not in reported.lower()
        lines = [line.removeprefix(b"data: ") for line in events.split(b"\n\n") if line]
        assert lines[-1] == b"[DONE]"
        assert "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1]) == "abbc" * 10
        whole = await connect(live)
        whole.say(b"GET /version HTTP/1.0\r\n\r\n")
        status, head, _ = await whole.answer()
        assert status == 200 and b"transfer-encoding" not in head.lower()
        await whole.closed()

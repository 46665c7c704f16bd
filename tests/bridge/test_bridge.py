"""The bridge over a real socket, with an engine of the test's making behind it: endings, aborts, deadlines, deaths."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq.asyncio

from aerie.bridge import bridge
from aerie.bridge.bridge import Bridge
from aerie.bridge.tally import Load
from aerie.contracts import wire
from aerie.contracts.messages import (
    Abort,
    Batch,
    Failed,
    Finished,
    Generate,
    Ready,
    Snapshot,
    Stop,
    Tokens,
    ToScheduler,
)
from aerie.contracts.sampling import SamplingParams
from tests.patience import PATIENCE, come

READY = Ready(max_length=100, vocabulary=50, end_ids=[2], report={})


class ToyEngine:
    """Answers each prompt with its numbers one by one, as long as `gate` is open, but for so many that come through it
    closed; knows aborts as SGLang does.
    """

    depth = 0
    greedy_only = False
    salts = True

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.tokens_before_the_gate = 0
        self.running: dict[str, asyncio.Event] = {}
        self.reason: str | None = None
        self.loads: Load | None = Load(running=1, tokens_used=3)

    async def generate(self, request: Generate) -> AsyncIterator[dict[str, Any]]:
        if request.prompt[0] == 13:
            raise ValueError("thirteen is not served")
        if request.prompt[0] == 14:
            raise KeyError("a bug")
        if request.prompt[0] == 15:
            return
        aborted = self.running[request.id] = asyncio.Event()
        ids: list[int] = []
        for token in request.prompt:
            if len(ids) < self.tokens_before_the_gate:
                ids.append(token)
                yield {"output_ids": ids, "meta_info": {"finish_reason": None}}
                continue
            waits = [asyncio.create_task(one.wait()) for one in (self.gate, aborted)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for one in waits:
                one.cancel()
            if aborted.is_set():
                yield {"output_ids": ids, "meta_info": {"finish_reason": {"type": "abort"}}}
                return
            ids.append(token)
            last = len(ids) == len(request.prompt)
            yield {"output_ids": ids, "meta_info": {"finish_reason": {"type": "length"} if last else None}}

    def abort(self, id: str) -> None:
        if id in self.running:
            self.running[id].set()

    async def load(self) -> Load:
        return replace(self.loads, tokens_total=10)  # type: ignore[type-var]

    def death(self) -> str | None:
        return self.reason


class Front:
    """The server's end of the wire."""

    def __init__(self, socket: zmq.asyncio.Socket, engine: ToyEngine, exit_code: "asyncio.Task[int]") -> None:
        self.engine = engine
        self.exit_code = exit_code
        self._socket = socket
        self._unread: list[Any] = []

    async def say(self, message: ToScheduler | bytes) -> None:
        await self._socket.send(message if isinstance(message, bytes) else wire.encode(message))

    async def hear(self, kind: Any = (Tokens, Finished, Failed)) -> Any:
        """The next message of a kind; others are dropped."""
        while True:
            if not self._unread:
                frame = await asyncio.wait_for(self._socket.recv(), PATIENCE)
                message = wire.decode_to_server(frame)
                self._unread = list(message.messages) if isinstance(message, Batch) else [message]
            message = self._unread.pop(0)
            if isinstance(message, kind):
                return message

    async def ending(self, id: str) -> Finished | Failed:
        while True:
            message: Finished | Failed = await self.hear((Finished, Failed))
            if message.id == id:
                return message


@asynccontextmanager
async def front() -> AsyncIterator[Front]:
    context = zmq.asyncio.Context()
    address = wire.private_address()
    server = wire.bind(context, address)
    client = wire.connect(context, address)
    engine = ToyEngine()
    serving = asyncio.create_task(Bridge(engine, client, parent=os.getppid()).serve(READY))
    try:
        yield Front(server, engine, serving)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        server.close()
        client.close()
        context.term()
        wire.remove_address(address)


def generate(id: str, prompt: list[int], **fields: Any) -> Generate:
    return Generate(id=id, prompt=prompt, sampling=SamplingParams(), **fields)


async def test_ready_then_tokens_in_order_then_one_ending() -> None:
    async with front() as one:
        assert await one.hear(Ready) == READY
        await one.say(generate("a", [5, 6, 7]))
        heard = [await one.hear() for _ in range(4)]
        assert [message.ids for message in heard[:3]] == [[5], [6], [7]]
        assert isinstance(heard[3], Finished) and heard[3].reason == "length"
        await one.say(Stop())
        assert await one.exit_code == 0


async def test_each_of_many_gets_its_own_tokens_and_one_ending() -> None:
    async with front() as one:
        for number in range(30):
            await one.say(generate(str(number), [20 + number % 7, number % 5 + 1]))
        tokens: dict[str, list[int]] = {}
        endings: list[str] = []
        while len(endings) < 30:
            message = await one.hear()
            if isinstance(message, Tokens):
                tokens.setdefault(message.id, []).extend(message.ids)
                assert message.id not in endings
            else:
                endings.append(message.id)
        assert sorted(endings) == sorted(map(str, range(30)))
        assert all(tokens[str(number)] == [20 + number % 7, number % 5 + 1] for number in range(30))


async def test_a_request_that_the_engine_refuses_fails_alone() -> None:
    async with front() as one:
        for id, prompt in (("refused", [13]), ("bug", [14]), ("silent", [15]), ("fine", [5])):
            await one.say(generate(id, prompt))
        seen: dict[str, Finished | Failed] = {}
        while len(seen) < 4:
            message = await one.hear((Finished, Failed))
            seen[message.id] = message
        refused = seen["refused"]
        assert isinstance(refused, Failed) and refused.status == 400 and "thirteen is not served" in refused.message
        bug = seen["bug"]
        assert isinstance(bug, Failed) and bug.status == 500 and "KeyError" in bug.message
        silent = seen["silent"]
        assert isinstance(silent, Failed) and silent.code == "lost"
        assert isinstance(seen["fine"], Finished)


async def test_wishes_that_would_be_ignored_are_refused() -> None:
    async with front() as one:
        await one.say(Generate(id="a", prompt=[5], sampling=SamplingParams(min_tokens=3)))
        ending = await one.ending("a")
        assert isinstance(ending, Failed) and ending.status == 400 and "min_tokens" in ending.message


async def test_an_abort_ends_a_request_and_an_unknown_one_nothing() -> None:
    async with front() as one:
        one.engine.gate.clear()
        await one.say(Abort(id="nobody"))
        await one.say(generate("a", [5, 6]))
        await one.say(generate("b", [5, 6]))
        await one.say(Abort(id="a"))  # before the engine has heard of it
        ending = await one.ending("a")
        assert isinstance(ending, Finished) and ending.reason == "abort"
        one.engine.gate.set()
        ending = await one.ending("b")
        assert isinstance(ending, Finished) and ending.reason == "length"


@pytest.mark.parametrize(
    ("field", "code", "words"),
    [
        ("deadline", "deadline_exceeded", "limits.total_seconds"),
        ("queue_deadline", "queue_timeout", "limits.queue_seconds"),
    ],
)
async def test_deadlines_end_requests(field: str, code: str, words: str) -> None:
    async with front() as one:
        one.engine.gate.clear()
        await one.say(generate("a", [5, 6], **{field: time.monotonic() + 0.1}))
        ending = await one.ending("a")
        assert isinstance(ending, Failed)
        assert (ending.code, ending.status) == (code, 503) and words in ending.message


async def test_a_request_that_has_begun_outlives_its_time_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    async with front() as one:
        one.engine.gate.clear()
        one.engine.tokens_before_the_gate = 1
        await one.say(generate("a", [5, 6], queue_deadline=time.monotonic() + 1000))
        assert (await one.hear(Tokens)).ids == [5]
        looks: list[float] = []

        def late() -> float:
            looks.append(time.monotonic() + 2000)
            return looks[-1]

        monkeypatch.setattr(bridge, "time", SimpleNamespace(monotonic=late))
        await come(lambda: len(looks) > 2, "nobody looks at deadlines")
        one.engine.gate.set()
        assert isinstance(await one.ending("a"), Finished)


async def test_a_dead_engine_ends_every_request_with_an_error_and_the_code_says_so() -> None:
    async with front() as one:
        one.engine.gate.clear()
        for id in "ab":
            await one.say(generate(id, [5, 6]))
        await come(lambda: len(one.engine.running) == 2, "the engine is not asked")
        one.engine.reason = "its process 7 has ended"
        for _ in "ab":
            ending = await one.hear((Finished, Failed))
            assert isinstance(ending, Failed) and ending.code == "engine_dead" and "process 7" in ending.message
        assert await one.exit_code == 1


async def test_a_bug_of_the_bridge_leaves_nobody_waiting() -> None:
    async with front() as one:
        one.engine.gate.clear()
        await one.say(generate("a", [5, 6]))
        await one.hear(Snapshot)
        one.engine.loads = None  # its next answer is none
        ending = await one.ending("a")
        assert isinstance(ending, Failed) and ending.code == "engine_dead" and "TypeError" in ending.message
        assert await one.exit_code == 1


async def test_stop_ends_what_is_open() -> None:
    async with front() as one:
        one.engine.gate.clear()
        await one.say(generate("a", [5, 6]))
        await one.say(Stop())
        ending = await one.ending("a")
        assert isinstance(ending, Failed) and ending.code == "stopping"
        assert await one.exit_code == 0


async def test_it_ends_with_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with front() as one:
        await one.hear(Ready)
        monkeypatch.setattr(os, "getppid", lambda: 1)
        assert await asyncio.wait_for(one.exit_code, PATIENCE) == 0


async def test_a_frame_that_is_no_message_is_dropped() -> None:
    async with front() as one:
        await one.say(msgspec.msgpack.encode({"type": "Nonsense"}))
        await one.say(generate("a", [5]))
        assert isinstance(await one.ending("a"), Finished)


async def test_snapshots_tell_loads_and_what_was_committed() -> None:
    async with front() as one:
        first = await one.hear(Snapshot)
        assert (first.pages_used, first.pages_total, first.running) == (3, 10, 0)  # nothing is open, whatever it says
        await one.say(generate("a", [5, 6]))
        await one.ending("a")
        one.engine.gate.clear()
        for id in "bcd":
            await one.say(generate(id, [5, 6]))
        snapshot = await one.hear(Snapshot)
        assert (snapshot.committed, snapshot.running, snapshot.waiting) == (2, 1, 2)

"""The engine client by itself: routing, lateness, death."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import zmq

from aerie.contracts import wire
from aerie.contracts.errors import EngineDead
from aerie.contracts.messages import Abort, Batch, Failed, Finished, Generate, Ready, Stop, Tokens, ToServer, Usage
from aerie.contracts.sampling import SamplingParams
from aerie.server.dispatch.client import LIVENESS_SECONDS, Engine
from aerie.server.dispatch.mailbox import Mailbox, Run
from tests.patience import PATIENCE, come


class Peer:
    """The scheduler's end, by hand."""

    def __init__(self, address: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = wire.connect(self.context, address)
        self.alive = True

    def say(self, *messages: ToServer) -> None:
        for message in messages:
            self.socket.send(wire.encode(message))

    async def hear(self) -> Generate | Abort | Stop:
        await come(lambda: self.socket.poll(0), "the server says nothing")
        return wire.decode_to_scheduler(self.socket.recv())

    def leave(self) -> None:
        self.alive = False
        if not self.socket.closed:
            self.socket.close(linger=0)
            self.context.term()


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Engine, Peer]]:
    address = wire.private_address()
    peer = Peer(address)
    engine = Engine(address, lambda: peer.alive)
    await engine.start()
    peer.say(Ready(max_length=10, vocabulary=10, end_ids=[1], report={}))
    await asyncio.wait_for(engine.became_ready.wait(), PATIENCE)
    yield engine, peer
    await engine.close()
    peer.leave()
    wire.remove_address(address)


def request(id: str) -> Generate:
    return Generate(id=id, prompt=[1], sampling=SamplingParams())


def finished(id: str) -> Finished:
    return Finished(id=id, reason="stop", usage=Usage(prompt_tokens=1, completion_tokens=1))


async def test_messages_find_their_mailbox(pair: tuple[Engine, Peer]) -> None:
    engine, peer = pair
    one, two = engine.open([request("a"), request("b")]), engine.open([request("c")])
    assert [(await peer.hear()).id for _ in range(3)] == ["a", "b", "c"]  # type: ignore[union-attr]
    peer.say(Batch(messages=[Tokens(id="c", ids=[3], accepted=0), Tokens(id="a", ids=[1, 2], accepted=1)]))
    peer.say(finished("c"))
    arrived = dict(await collect(one, 1))
    assert isinstance(arrived["a"], Run)
    assert (arrived["a"].ids, arrived["a"].drafted) == ([1, 2], [True, False])
    assert [type(arrival) for _, arrival in await collect(two, 2)] == [Run, Finished]
    assert (one.open, two.open) == ({"a", "b"}, set())


async def test_late_and_unknown_ids_are_ignored(pair: tuple[Engine, Peer]) -> None:
    engine, peer = pair
    mailbox, last = engine.open([request("a")]), engine.open([request("last")])
    peer.say(finished("never"), Tokens(id="x", ids=[1], accepted=0), finished("a"))
    peer.say(Tokens(id="a", ids=[1], accepted=0), finished("a"), Failed(id="a", code="late", message="late"))
    peer.say(finished("last"))
    arrived = await collect(mailbox, 1)
    await collect(last, 1)  # all that was said before it has been read by now
    assert [type(arrival) for _, arrival in arrived] == [Finished]
    assert await mailbox.take(0) == []
    assert engine.death is None
    engine.abort("a")
    engine.drop(mailbox)


async def test_dropping_aborts_what_is_open(pair: tuple[Engine, Peer]) -> None:
    engine, peer = pair
    mailbox = engine.open([request("a"), request("b")])
    peer.say(finished("a"))
    await collect(mailbox, 1)
    engine.drop(mailbox)
    engine.drop(mailbox)
    heard = [await peer.hear() for _ in range(3)]
    assert heard[2] == Abort(id="b")


async def test_closing_tells_the_scheduler_to_stop() -> None:
    address = wire.private_address()
    peer = Peer(address)
    engine = Engine(address, lambda: True)
    await engine.start()
    peer.say(Ready(max_length=10, vocabulary=10, end_ids=[1], report={}))
    await asyncio.wait_for(engine.became_ready.wait(), PATIENCE)
    await engine.close()
    assert isinstance(await peer.hear(), Stop)
    peer.leave()
    wire.remove_address(address)


async def test_a_slow_reader_finds_one_run(pair: tuple[Engine, Peer]) -> None:
    engine, peer = pair
    mailbox = engine.open([request("a")])
    peer.say(*(Tokens(id="a", ids=[place, place], accepted=1) for place in range(500)))
    await come(lambda: len(mailbox._runs.get("a", Run()).ids) == 1000, "runs get lost")
    [(_, run)] = await mailbox.take(1)
    assert isinstance(run, Run)
    assert run.ids == [place for place in range(500) for _ in range(2)]
    assert run.drafted == [True, False] * 500


async def test_a_dead_scheduler_fails_everyone(pair: tuple[Engine, Peer], monkeypatch: pytest.MonkeyPatch) -> None:
    engine, peer = pair
    mailboxes = [engine.open([request(str(place))]) for place in range(20)]
    looked: list[bool] = []
    monkeypatch.setattr(engine, "_scheduler_alive", lambda: looked.append(peer.alive) or peer.alive)
    peer.leave()
    await asyncio.wait_for(engine.died.wait(), PATIENCE)
    assert looked.count(False) == 1 and LIVENESS_SECONDS <= 0.2, "seen at the first look, and one is soon"
    for mailbox in mailboxes:
        [(_, failed)] = await mailbox.take(1)
        assert isinstance(failed, Failed) and failed.code == "engine_dead"
    with pytest.raises(EngineDead):
        engine.open([request("later")])


async def test_nobody_is_told_of_a_death_before_the_server_knows(pair: tuple[Engine, Peer]) -> None:
    """Its scheduler says that the lane is gone, and lives on for a moment."""
    engine, peer = pair
    reported, other = engine.open([request("a")]), engine.open([request("b")])
    peer.say(Batch(messages=[Failed(id="a", code="engine_dead", message="the lane is gone")]))
    [(_, failed)] = await reported.take(PATIENCE)
    assert engine.death is not None and engine.died.is_set() and peer.alive
    assert [failed.code, failed.message] == ["engine_dead", "the lane is gone"]
    assert [type(ending) for _, ending in await other.take(PATIENCE)] == [Failed]


async def test_a_frame_that_is_no_message_is_the_end(pair: tuple[Engine, Peer]) -> None:
    engine, peer = pair
    mailbox = engine.open([request("a")])
    peer.socket.send(b"\x93nonsense")
    [(_, failed)] = await mailbox.take(PATIENCE)
    assert isinstance(failed, Failed) and "invalid message" in failed.message
    assert engine.death is not None


async def collect(mailbox: Mailbox, count: int) -> list[tuple[str, object]]:
    arrived: list[tuple[str, object]] = []
    async with asyncio.timeout(PATIENCE):
        while len(arrived) < count:
            arrived += await mailbox.take(PATIENCE)
    return arrived

"""The scheduler as a real process on a real socket: it answers, outlives signals, and dies with its lane or parent."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import zmq

from aerie.contracts import wire
from aerie.contracts.messages import Abort, Batch, Failed, Finished, Generate, Ready, Snapshot, Stop, Tokens
from tests import fakes
from tests.house import HOME
from tests.patience import PATIENCE, end_of
from tests.scheduler.driver import generate

CHILD = """
import sys
from aerie.contracts.config import parse_config
from aerie.scheduler.process import run
from tests import fakes

worker = fakes.FakeWorker(fakes.capacity(rows=4, pages=200))
lane = {lane}
code = run(sys.argv[1], lane, parse_config({{"spec": {{"planner": "fixed"}}}}))
assert worker.closed
sys.exit(code)
"""
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]])
print(child.pid, flush=True)
time.sleep(600)
"""


class Server:
    """The server's end of the wire."""

    def __init__(self, lane: str) -> None:
        self.address = wire.private_address()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = wire.bind(self._context, self.address)
        self.code = CHILD.format(lane=lane)
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", self.code, self.address], cwd=HOME)
        assert isinstance(self.receive(), Ready)

    def send(self, *messages: Generate | Abort | Stop) -> None:
        for message in messages:
            self._socket.send(wire.encode(message))

    def send_bytes(self, frame: bytes) -> None:
        self._socket.send(frame)

    def receive(self) -> Batch | Ready:
        assert self._socket.poll(round(1000 * PATIENCE)), "the scheduler is silent"
        return wire.decode_to_server(self._socket.recv())

    def until_ended(self, *ids: str) -> dict[str, tuple[list[int], Finished | Failed]]:
        """Receives until all these ids have ended; their tokens and ends."""
        tokens: dict[str, list[int]] = {id: [] for id in ids}
        ends: dict[str, Finished | Failed] = {}
        while set(ends) < set(ids):
            batch = self.receive()
            assert isinstance(batch, Batch)
            for message in batch.messages:
                if isinstance(message, Tokens):
                    tokens[message.id] += message.ids
                elif not isinstance(message, Snapshot):
                    assert message.id not in ends
                    ends[message.id] = message
        return {id: (tokens[id], ends[id]) for id in ids}

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._socket.close(0)
        self._context.term()
        wire.remove_address(self.address)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """With the lane that the test's marker gives, or one that is in no hurry."""
    marker = request.node.get_closest_marker("parametrize")
    lane = request.getfixturevalue("lane") if marker and "lane" in marker.args[0] else "fakes.DelayedLane(worker)"
    server = Server(lane)
    yield server
    server.close()


def test_it_answers_outlives_signals_and_stops_when_told(server):
    server.start()
    request = generate("a", [1, 2, 3], max_tokens=9)
    server.send(request)
    server.process.send_signal(signal.SIGINT)
    server.process.send_signal(signal.SIGTERM)
    tokens, end = server.until_ended("a")["a"]
    assert (tokens, end.reason) == fakes.answer([1, 2, 3], request.sampling, fakes.capacity(), max_length=64)
    server.send_bytes(b"\xc1 no message")
    server.send(Abort(id="unknown"), generate("b", [1, 2, 3], max_tokens=9))
    assert server.until_ended("b")["b"][0] == tokens
    server.send(Stop())
    assert server.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("lane", ["fakes.TimedLane(worker, 0.5)"])
def test_stop_fails_what_is_open(server, lane):
    """Half a minute before it would be done."""
    server.start()
    server.send(generate("a", [1], max_tokens=60), generate("b", [2], max_tokens=60))
    while not any(isinstance(message, Tokens) for message in server.receive().messages):
        pass
    server.send(Stop())
    ended = server.until_ended("a", "b")
    assert {end.code for _, end in ended.values()} == {"stopping"}
    assert server.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("lane", ["fakes.DyingLane(worker, 4)"])
def test_a_dead_lane_fails_every_request_and_ends_the_process(server, lane):
    server.start()
    server.send(*[generate(id, [1], max_tokens=60) for id in "abc"])
    ended = server.until_ended("a", "b", "c")
    assert {end.code for _, end in ended.values()} == {"engine_dead"}
    assert server.process.wait(PATIENCE) == 1


@pytest.mark.parametrize("lane", ["type('Bug', (fakes.DelayedLane,), {'settle': lambda self: 1 / 0})(worker)"])
def test_our_own_bug_leaves_nobody_waiting(server, lane):
    server.start()
    server.send(generate("a", [1], max_tokens=60))
    _, end = server.until_ended("a")["a"]
    assert end.code == "engine_dead" and "ZeroDivisionError" in end.message
    assert server.process.wait(PATIENCE) == 1


def test_it_ends_with_its_parent(server):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, server.code, server.address], cwd=HOME, stdout=subprocess.PIPE, text=True
    )
    child = int(parent.stdout.readline())
    assert isinstance(server.receive(), Ready)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end_of(child)

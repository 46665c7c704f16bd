"""How a server ends: by a signal it drains, by a dead part it says so to everybody and leaves with an error."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import QUESTION, Server

LONG: dict[str, Any] = {
    "model": "aerie-demo",
    "messages": QUESTION,
    "max_tokens": 1500,
    "temperature": 0,
    "stream": True,
    "extra_body": {"ignore_eos": True},
}


class Listener:
    """A stream that is read in a thread until it ends, one way or another."""

    def __init__(self, server: Server, **fields: Any) -> None:
        self.pieces, self.ended_at = 0, 0.0
        self.finish: str | None = None
        self.error: Exception | None = None
        self._fields = LONG | fields
        self._server = server
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()
        deadline = time.monotonic() + 30
        while not self.pieces:
            assert time.monotonic() < deadline and self.thread.is_alive(), self.error
            time.sleep(0.01)

    def _listen(self) -> None:
        try:
            with self._server.client() as client:
                for chunk in client.chat.completions.create(**self._fields):
                    for choice in chunk.choices:
                        self.pieces += bool(choice.delta.content)
                        self.finish = choice.finish_reason or self.finish
        except openai.OpenAIError as error:
            self.error = error
        self.ended_at = time.monotonic()


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of its own, since each test ends it."""
    with Server() as running:
        yield running


@pytest.mark.parametrize("part", ["scheduler", "lane"])
def test_a_killed_part_is_told_to_every_stream(server: Server, part: str) -> None:
    listeners = [Listener(server), Listener(server)]
    killed = time.monotonic()
    os.kill(server.children()[part], signal.SIGKILL)
    for listener in listeners:
        listener.thread.join(10)
        assert isinstance(listener.error, openai.APIError), "the stream ends with an error event, not in silence"
        assert listener.ended_at - killed < 2
    assert server.process.wait(15) != 0
    server.end()
    assert "Traceback" not in server.output


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_requests_finish(server: Server, sign: signal.Signals) -> None:
    listener, children = Listener(server, max_tokens=120), server.children()
    server.process.send_signal(sign)
    assert server.process.wait(40) == 0
    listener.thread.join(5)
    assert listener.error is None and listener.finish == "length", "the answer came whole"
    server.end()
    assert "Traceback" not in server.output
    end_of(children)


def test_draining_is_bounded() -> None:
    with Server("server.drain_seconds=1") as server:
        listener = Listener(server)
        asked = time.monotonic()
        assert server.end() == 0
        assert time.monotonic() - asked < 15, "thirty seconds is the default"
        listener.thread.join(5)
        assert isinstance(listener.error, openai.APIError), "what did not finish is told so"
        assert "Traceback" not in server.output


def test_children_end_with_their_parent_and_tidy_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Server() as server:
        assert list(tmp_path.glob("aerie-*")), "the socket's folder"
        children = server.children()
        server.process.kill()
        end_of(children)
    assert not list(tmp_path.glob("aerie-*"))


def end_of(children: dict[str, int]) -> None:
    """Waits for it."""
    deadline = time.monotonic() + 10
    while any(_runs(pid) for pid in children.values()):
        assert time.monotonic() < deadline, "a child outlives the server"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False

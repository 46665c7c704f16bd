"""How a server ends: by a signal it drains, by a dead part it says so to everybody and leaves with an error."""

import math
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import QUESTION, Server
from tests.patience import PATIENCE, end_of, quickest, until

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
        until(lambda: self.pieces or not self.thread.is_alive(), "nothing is streamed")
        assert self.pieces, self.error

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


@pytest.mark.parametrize("part", ["scheduler", "lane"])
def test_a_killed_part_is_told_to_every_stream(part: str) -> None:
    def killing() -> float:
        """Seconds until every stream had ended; no figure where one was done before."""
        with Server() as server:
            listeners = [Listener(server), Listener(server)]
            killed = time.monotonic()
            os.kill(server.children()[part], signal.SIGKILL)
            for listener in listeners:
                listener.thread.join(PATIENCE)
            assert server.process.wait(PATIENCE) != 0
            server.end()
            assert "Traceback" not in server.output
        if any(listener.finish for listener in listeners):
            return math.inf
        errors = [listener.error for listener in listeners]
        assert all(isinstance(error, openai.APIError) for error in errors), "an error event ends it, not silence"
        return max(listener.ended_at for listener in listeners) - killed

    assert quickest(killing, 2) < 2


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_requests_finish(sign: signal.Signals) -> None:
    with Server() as server:
        listener, children = Listener(server, max_tokens=120), server.children()
        server.process.send_signal(sign)
        assert server.process.wait(PATIENCE) == 0
        listener.thread.join(PATIENCE)
        assert listener.error is None and listener.finish == "length", "the answer came whole"
        server.end()
        assert "Traceback" not in server.output
        end_of(*children.values())


def test_draining_is_bounded() -> None:
    def draining() -> float:
        """Seconds until the stream had ended; no figure where it was done before."""
        with Server("server.drain_seconds=1") as server:
            listener = Listener(server)
            asked = time.monotonic()
            assert server.end() == 0
            took = time.monotonic() - asked
            listener.thread.join(PATIENCE)
            assert "Traceback" not in server.output
        if listener.finish:
            return math.inf
        assert isinstance(listener.error, openai.APIError), "what did not finish is told so"
        return took

    assert quickest(draining, 15) < 15, "thirty seconds is the default"


def test_children_end_with_their_parent_and_tidy_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Server() as server:
        assert list(tmp_path.glob("aerie-*")), "the socket's folder"
        children = server.children()
        server.process.kill()
        end_of(*children.values())
    assert not list(tmp_path.glob("aerie-*"))

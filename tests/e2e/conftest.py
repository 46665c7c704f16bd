"""A real `aerie serve` of the demo pair: three processes, a real socket on loopback, the official client."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import pytest
from openai import OpenAI

from tests.house import HOME
from tests.patience import PATIENCE

CONFIG = "configs/serve/demo.yaml"
SMALL = ("server.port=0", "engine.threads=1", "engine.kv_tokens=16384", "model.dtype=float32")
QUESTION = [{"role": "user", "content": "Count from 20 to 60 in steps of 2."}]
_START_SECONDS = 200
"""Of a machine that does ten other things besides; alone it takes five."""


class Server:
    """A running server. `url` once it is ready; `output` all that it printed."""

    python = sys.executable

    def __init__(self, *settings: str, target: str = CONFIG) -> None:
        command = [self.python, "-m", "aerie", "serve", target, *SMALL, *settings]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            command, cwd=HOME, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        return "".join(self._lines)

    def wait_ready(self) -> "Server":
        deadline = time.monotonic() + _START_SECONDS
        while not (found := re.search(r"serves (\S+) at (http://127\.0\.0\.1:\d+)[\s\S]*print\(answer", self.output)):
            assert self.process.poll() is None and time.monotonic() < deadline, self.output
            time.sleep(0.05)
        self.name, self.url = found[1], found[2]
        return self

    def client(self, **options: object) -> OpenAI:
        given: dict = {"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, "timeout": PATIENCE} | options
        return OpenAI(**given)

    def children(self) -> dict[str, int]:
        """Process ids of the scheduler, our child, and of its child, the lane."""
        scheduler = _child_that_runs(self.process.pid, "spawn_main")
        return {"scheduler": scheduler, "lane": _child_that_runs(scheduler, "")}

    def end(self, sign: int = signal.SIGTERM, seconds: float = PATIENCE) -> int:
        """The exit code after a signal."""
        if self.process.poll() is None:
            self.process.send_signal(sign)
        code = self.process.wait(seconds)
        self._reader.join(PATIENCE)
        return code

    def __enter__(self) -> "Server":
        try:
            return self.wait_ready()
        except BaseException:  # a server that comes too late must not outlive its test
            self.__exit__(None, None, None)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self._lines.extend(iter(self.process.stdout.readline, ""))  # grows as lines come


def _child_that_runs(parent: int, word: str) -> int:
    for pid in _children(parent):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        if word in command and "resource_tracker" not in command:
            return pid
    raise AssertionError(f"process {parent} has no child that runs {word!r}")


def _children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for all tests that leave it as it was."""
    with Server() as running:
        yield running
        assert running.end() == 0, running.output


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[OpenAI]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="session")
def drafting() -> Iterator[OpenAI]:
    """Of a server that drafts in every answer, for tests of what drafts bring: a planner may find that nothing pays."""
    with Server("spec.planner=fixed") as running:
        with running.client() as client:
            yield client
        assert running.end() == 0, running.output


@pytest.fixture
def refused() -> Callable[..., str]:
    """What a server says that cannot start; it must leave with code 2 and no traceback."""

    def start(*settings: str, target: str = CONFIG) -> str:
        server = Server(*settings, target=target)
        try:
            code = server.process.wait(_START_SECONDS)
        finally:
            server.__exit__(None, None, None)  # one that starts all the same must not outlive its test
        assert code == 2, server.output
        assert "Traceback" not in server.output
        return " ".join(server.output.split())

    return start

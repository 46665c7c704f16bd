"""Servers of SGLang's whole engine for tests: `aerie serve` in forks of a process that has imported SGLang once."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from openai import OpenAI

HERE = Path(__file__).parent
HOME = HERE.parent.parent
QUESTION = [{"role": "user", "content": "Count from 20 to 60 in steps of 2."}]
_START_SECONDS = 300
_COMMON = (
    "engine.kind=sglang",
    "engine.device=cpu",
    "engine.kv_tokens=4096",
    "model.dtype=float32",
    "scheduler.max_running=8",
    "server.port=0",
    "sglang.arguments.sampling_backend=pytorch",
)
PLAIN = ("spec.head=none", "sglang.arguments.attention_backend=torch_native")
EAGLE3 = (
    "spec.head=auto",
    "spec.depth=3",
    "spec.topk=2",
    "spec.nodes=6",
    "sglang.arguments.attention_backend=tree_on_cpu",
)


class Zygote:
    """See `zygote.py`. One for a test session; the servers that it forks end with it."""

    def __init__(self, folder: Path, python: Path = Path(sys.executable)) -> None:
        self._folder = folder
        self._count = 0
        path = os.pathsep.join([str(HERE / "shim"), str(HERE / "stub"), str(HOME)])
        environment = {"PYTHONPATH": path, "SGLANG_RETURN_ORIGINAL_LOGPROB": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._log = (folder / "zygote.log").open("ab")
        self._process = subprocess.Popen(
            [str(python), str(HERE / "zygote.py")],
            cwd=HOME,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self._answer() == "loaded"

    def serve(self, *settings: str, target: str = "models/demo/target") -> "EngineServer":
        """Returns at once; the server is loading."""
        self._count += 1
        log = self._folder / f"server-{self._count}.log"
        log.touch()
        words = ["serve", target, *_COMMON, *settings]
        pid = self.ask({"words": words, "environment": {"COLUMNS": "200"}, "log": str(log)})
        return EngineServer(self, pid, log)

    def ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()
        self._log.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, (self._folder / "zygote.log").read_text()
        return json.loads(line)


class EngineServer:
    """A server in a process group of its own; `url` once it is ready."""

    def __init__(self, zygote: Zygote, pid: int, log: Path) -> None:
        self._zygote = zygote
        self.pid = pid
        self._log = log

    @property
    def output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait_ready(self) -> "EngineServer":
        return self.wait_for(r"serves (?P<name>\S+) at (?P<url>http://127\.0\.0\.1:\d+)[\s\S]*print\(answer")

    def wait_for(self, pattern: str) -> "EngineServer":
        """Until the log says so."""
        deadline = time.monotonic() + _START_SECONDS
        while not (found := re.search(pattern, self.output)):
            assert self.code() is None and time.monotonic() < deadline, self.output[-6000:]
            time.sleep(0.1)
        self.url = found.groupdict().get("url", "")
        return self

    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)

    def code(self) -> int | None:
        """The exit code, once it has ended."""
        code: int | None = self._zygote.ask({"look": self.pid})
        return code

    def wait(self, seconds: float = 90) -> int:
        deadline = time.monotonic() + seconds
        while (code := self.code()) is None:
            assert time.monotonic() < deadline, f"still running after {seconds} s\n{self.output[-4000:]}"
            time.sleep(0.1)
        return code

    def rank(self, name: str) -> int:
        """The process id of one of SGLang's processes, by the title that it gives itself."""
        for pid in self.processes():
            if name in _command(pid):
                return pid
        raise AssertionError(f"no process {name} among {[_command(pid) for pid in self.processes()]}")

    def processes(self) -> list[int]:
        """All that run in the server's process group."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if fields[0] != "Z" and int(fields[2]) == self.pid:
                    found.append(int(entry.name))
        return found

    def __enter__(self) -> "EngineServer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.code() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._zygote.ask({"wait": self.pid})


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def answer(server: EngineServer) -> str:
    """What it says to the question, greedily."""
    with server.client() as client:
        done = client.chat.completions.create(model="target", messages=QUESTION, temperature=0, max_tokens=48)
    return done.choices[0].message.content or ""


def metric(server: EngineServer, name: str) -> float:
    """A metric of Aerie's, summed over its labels."""
    return metrics(server, name)[0]


def metrics(server: EngineServer, *names: str) -> list[float]:
    """Metrics of one moment, each summed over its labels."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return [
        sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"aerie:{name}{{")) for name in names
    ]


def settles(check: Callable[[], bool], seconds: float = 90) -> bool:
    """Whether something becomes true in time."""
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def stream(server: EngineServer, after_three: Callable[[], None]) -> list[str]:
    """The events of a long answer; something happens after the third."""
    body = {"messages": QUESTION, "temperature": 0, "max_tokens": 1500, "ignore_eos": True, "stream": True}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}/v1/chat/completions", json.dumps(body).encode(), headers)
    events = []
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in filter(bytes.strip, answer):
            events.append(line.decode())
            if len(events) == 3:
                after_three()
    return events

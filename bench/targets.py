"""Servers under load: started by their command and stopped with all their children, or reached at their URL."""

import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from aerie.bench.config import SweepError, Target
from aerie.bench.counters import Counters, parse
from aerie.bench.loads.client import Endpoint
from aerie.bench.origin import SERVER, provenance

_STOP_SECONDS = 40.0
_LOOK_SECONDS = 0.2
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LEASH = Path(__file__).parent / "leash.py"


class Server:
    """A running target. Use it in a `with`, which stops what it started."""

    def __init__(self, target: Target, logs: Path) -> None:
        self._target = target
        self._log = logs / f"{target.name.replace(' ', '-')}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = base_url(target.url or "")

    def __enter__(self) -> "Server":
        if self._target.command is not None:
            self._start(self._target.command)
        try:
            self._await_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process is None:
            return
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, sign)
                process.wait(_STOP_SECONDS)
                break
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        process.wait()
        self._process = None

    @property
    def alive(self) -> bool:
        """Whether its process runs, as far as can be seen without a request."""
        return self._process is None or self._process.poll() is None

    @property
    def group(self) -> int | None:
        """The id of the process group of what it started."""
        return None if self._process is None else self._process.pid

    @property
    def answers(self) -> bool:
        """Whether it runs and serves its list of models."""
        try:
            self._get("/v1/models")
        except (OSError, ValueError):
            return False
        return self.alive

    def revive(self) -> None:
        """Restarts it after it has ended. Raises SweepError if that is not possible."""
        if self._target.command is None:
            raise SweepError(f"{self._target.name}: nothing answers at {self.url}/v1/models")
        self.__exit__()
        self.__enter__()

    def counters(self) -> Counters | str:
        """Speculation counters from /metrics, or why there are none."""
        try:
            return parse(self._read("/metrics").decode()) or "its /metrics has no counters of speculation"
        except (OSError, ValueError) as error:
            return f"no /metrics: {error}"

    def endpoint(self, temperature: float) -> Endpoint:
        model = self._target.model or self._get("/v1/models")["data"][0]["id"]
        return Endpoint(self.url, model, self._target.api_key, {"temperature": temperature, **self._target.fields})

    def provenance(self) -> dict[str, Any]:
        """Where its figures come from; a server of this checkout is measured with its code and its config."""
        words = shlex.split(self._target.command or "")
        return provenance(SERVER if words[:1] == ["aerie"] else (), words)

    def describe(self) -> dict[str, Any]:
        """Version and resolved config if the server reports them."""
        target = self._target
        answer_of: dict[str, Any] = {"command": target.command, "environment": target.environment, "url": target.url}
        for key, path in (("version", "/version"), ("config", "/config")):
            try:
                answer_of[key] = self._get(path)
            except (OSError, ValueError):
                answer_of[key] = None
        return answer_of

    def _start(self, command: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        words = shlex.split(command.replace("{port}", str(port)))
        environment = _environment() | self._target.environment
        if shutil.which(words[0], path=environment["PATH"]) is None:
            raise SweepError(f"{self._target.name}: cannot start {command!r}: no {words[0]} is found{self._hint}")
        self._log.parent.mkdir(parents=True, exist_ok=True)
        leashed = [sys.executable, str(_LEASH), str(os.getpid()), *words]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(leashed, stdout=log, stderr=log, env=environment, start_new_session=True)

    @property
    def _hint(self) -> str:
        return "" if self._target.install is None else f". To install it: {self._target.install}"

    def _await_ready(self) -> None:
        deadline = time.monotonic() + self._target.start_seconds
        while True:
            try:
                self._get("/v1/models")
                return
            except urllib.error.HTTPError as error:
                if error.code in (401, 403):
                    raise SweepError(f"{self._target.name}: {self.url} wants another api_key ({error.code})") from None
            except (OSError, ValueError):
                pass
            if not self.alive:
                raise SweepError(f"{self._target.name} ended while it started; see {self._log}{self._hint}")
            if time.monotonic() > deadline or (self._process is None and self._target.url is not None):
                raise SweepError(f"{self._target.name}: nothing answers at {self.url}/v1/models")
            time.sleep(_LOOK_SECONDS)

    def _get(self, path: str) -> Any:
        return json.loads(self._read(path))

    def _read(self, path: str) -> bytes:
        key = self._target.api_key
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=10) as answer:
            answer_of: bytes = answer.read()
        return answer_of


def base_url(url: str) -> str:
    """host:port or a URL, with or without /v1 -> the URL without it."""
    bare = url.rstrip("/").removesuffix("/v1")
    return bare if "://" in bare else f"http://{bare}"


def free_port() -> int:
    """A free port on loopback, outside the range from which the kernel assigns ports to connections.

    A port of that range might be taken before the server that needs it has started.
    """
    for port in random.Random().sample(range(10_000, _first_given_port()), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    with socket.create_server(("127.0.0.1", 0)) as free:
        chosen: int = free.getsockname()[1]
    return chosen


def _first_given_port() -> int:
    """First port that the kernel assigns to connections: as Linux reports it, else the usual one."""
    try:
        first = int(_PORT_RANGE.read_text(encoding="ascii").split()[0])
    except OSError:
        first = 32_768
    return max(first, 10_100)


def _environment() -> dict[str, str]:
    """The environment with this Python's own commands first on the path, activated or not."""
    own = str(Path(sys.executable).parent)
    return os.environ | {"PATH": f"{own}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}

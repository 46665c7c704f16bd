"""A first start, with nothing compiled yet, that is stopped at any moment leaves no process, socket or library."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import CONFIG, HOME, SMALL
from tests.patience import PATIENCE, until

COMPILER = """#!/bin/sh
[ "$1" = --version ] && exit 0
trap "" TERM INT  # a compiler that does not mind what it is told, and has children
sleep 1000 &
for last; do :; done
echo half > "$last"
touch "{begun}/$$"
wait
"""


class FirstStart:
    """A server whose compilers never end. `mark` is in the environment of every process that it starts."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.scratch, self.kernels, self.begun, self._log = (
            folder / name for name in ("scratch", "kernels", "begun", "log")
        )
        programs = folder / "programs"
        for made in (programs, self.scratch, self.begun):
            made.mkdir()
        compiler = programs / "c++"
        compiler.write_text(COMPILER.format(begun=self.begun))
        compiler.chmod(0o755)
        self.mark = f"AERIE_TEST_MARK={uuid.uuid4()}"
        environment = os.environ | dict([self.mark.split("=")]) | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        environment |= {"AERIE_KERNELS": str(self.kernels), "TMPDIR": str(self.scratch)}
        environment["PATH"] = f"{programs}:{environment['PATH']}"
        with self._log.open("wb") as log:
            command = [sys.executable, "-m", "aerie", "serve", CONFIG, *SMALL, *settings]
            self.process = subprocess.Popen(command, cwd=HOME, env=environment, stdout=log, stderr=log)

    @property
    def said(self) -> str:
        return self._log.read_text()

    def processes(self) -> list[int]:
        return [int(place.parent.name) for place in Path("/proc").glob("[0-9]*/environ") if self._is_ours(place)]

    def _is_ours(self, environ: Path) -> bool:
        try:
            return self.mark.encode() in environ.read_bytes()
        except (OSError, ProcessLookupError):
            return False

    def left(self) -> list[Path]:
        """Sockets, and what compilers have begun."""
        return [*self.scratch.glob("*"), *self.kernels.rglob("*.so"), *self.kernels.glob("cpp/*")]


@pytest.fixture
def first_start(tmp_path: Path) -> Iterator[Callable[..., FirstStart]]:
    made: list[FirstStart] = []

    def start(*settings: str) -> FirstStart:
        made.append(FirstStart(tmp_path, *settings))
        return made[-1]

    yield start
    for one in made:
        for pid in one.processes():
            os.kill(pid, signal.SIGKILL)
        one.process.wait(PATIENCE)


POINTS: dict[str, Callable[[FirstStart], bool]] = {
    "it loads": lambda start: "INFO aerie.serve: loading" in start.said,
    "its scheduler is there": lambda start: len(start.processes()) > 1 and any(start.scratch.iterdir()),
    "its lane is there": lambda start: len(start.processes()) > 3,
    "it compiles": lambda start: any(start.begun.iterdir()),
}


@pytest.mark.parametrize(
    ("point", "sign"),
    [*((point, signal.SIGTERM) for point in POINTS), ("it compiles", signal.SIGINT), ("it compiles", signal.SIGKILL)],
)
def test_a_stopped_start_leaves_nothing(
    point: str, sign: signal.Signals, first_start: Callable[..., FirstStart]
) -> None:
    start = first_start()
    until(lambda: POINTS[point](start) or start.process.poll() is not None, f"never seen: {point}")
    assert start.process.poll() is None, start.said
    start.process.send_signal(sign)
    assert start.process.wait(PATIENCE) == (0 if sign != signal.SIGKILL else -sign), start.said
    until(lambda: not start.processes(), "a process outlives the server")
    assert not start.left()
    assert "Traceback" not in start.said
    assert start.said.count("INFO aerie.kernels: compiling ") == ("compiles" in point), "of the lane, in the one form"


def test_torch_s_kernels_compile_nothing_and_each_phase_is_logged_once(
    first_start: Callable[..., FirstStart],
) -> None:
    start = first_start("engine.kernels=torch")
    until(lambda: "print(answer" in start.said or start.process.poll() is not None, "never ready")
    assert not any(start.begun.iterdir())
    start.process.send_signal(signal.SIGTERM)
    assert start.process.wait(PATIENCE) == 0
    assert start.said.count("INFO aerie.serve: loading ") == start.said.count("INFO aerie.serve: ready in ") == 1
    assert "compiling" not in start.said and "uvicorn" not in start.said

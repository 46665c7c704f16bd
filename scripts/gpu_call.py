"""Runs one of the three calls of scripts/gpu_calls.py: stage by stage, each in processes of its own.

    python scripts/gpu_call.py first --out results

Stages run one after the other, but for neighbours that time nothing: those run at once. A stage that fails or hangs is
ended with all that it started, and costs itself and the stages that need it; the end of its log is printed. Two files
are left under --out: `results.tar.gz`, all that the stages have written, and `summary.json`. Both are renewed every 20
seconds and replaced at once, so that what ends the call early finds them whole. Exits with code 1 if a stage failed.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from gpu_calls import CALL_SECONDS, CALLS, Stage

HOME = Path(__file__).resolve().parents[1]
RENEWED = 20.0
"""Seconds between two archives."""
_GRACE = 5.0
"""Seconds for a stage to end by itself once it is asked to."""
_LOOK = 0.05
"""Seconds between two looks at what runs."""
_SLOWER = 10
"""Times the seconds that stages get in a rehearsal, on a CPU with other work."""
_SMALLEST = 5.0
"""Seconds left below which no stage is started."""
_LARGEST = 4 << 20
"""Bytes of a file that the archive takes."""
_SHOWN = 15
"""Lines of a failed stage's log that are printed."""
_THREADS = str(max(1, (os.cpu_count() or 1) // 4))
"""Of PyTorch on the CPU, in each process: several run at once, and the GPU does the work."""
_MARK = "AERIE_STAGE"
"""Set for a stage and all that it starts, so that its end finds them, whatever group or session they are in."""

Cell = dict[str, Any]


class Call:
    """A call in progress. `words` fill the commands; `clock` gives seconds. Stages write under `work`, not `out`."""

    def __init__(
        self, stages: tuple[Stage, ...], out: Path, words: dict[str, str], *,
        seconds: float, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._stages = stages
        self._out = out
        self._work = Path(tempfile.mkdtemp(prefix="aerie-call-"))
        self._words = words | {"out": str(self._work)}
        self._clock = clock
        self._ends = clock() + seconds
        self._renewing = threading.Lock()
        self._ended: dict[str, str] = {}
        self.cells: list[Cell] = []

    def run(self) -> bool:
        """Whether every stage passed that could run."""
        self._out.mkdir(parents=True, exist_ok=True)
        for beside, stages in groupby(self._stages, key=lambda stage: stage.beside):
            if beside:
                with ThreadPoolExecutor(len(self._stages)) as threads:
                    list(threads.map(self._pass, stages))
            else:
                for stage in stages:
                    self._pass(stage)
        shutil.rmtree(self._work)
        return all(how == "passed" for how in self._ended.values())

    def _pass(self, stage: Stage) -> None:
        """Runs a stage, if it can be; notes how it ended."""
        began, left = self._clock(), self._ends - self._clock()
        needed = "passed" if stage.needs is None else self._ended.get(stage.needs, "passed")
        if needed != "passed":
            how = f"left out: {stage.needs} {needed}"
        elif left < _SMALLEST:
            how = "left out: the call's time is over"
        else:
            print(f"== {stage.name}, at most {min(stage.seconds, left):.0f} s", flush=True)
            how = self._run(stage, min(stage.seconds, left))
        seconds = round(self._clock() - began, 1)
        self._ended[stage.name] = how
        self.cells.append({"stage": stage.name, "ended": how, "seconds": seconds, "beside": stage.beside})
        print(f"== {stage.name}: {how} after {seconds} s", flush=True)
        self._renew()

    def _run(self, stage: Stage, seconds: float) -> str:
        log, mark = self._work / f"logs/{stage.name}.log", uuid.uuid4().hex
        log.parent.mkdir(exist_ok=True)
        with open(log, "wb") as target:
            started = subprocess.Popen(
                ["sh", "-c", stage.command.format(**self._words)],
                cwd=HOME,
                stdin=subprocess.DEVNULL,
                stdout=target,
                stderr=subprocess.STDOUT,
                process_group=0,  # of this session: what ends the session ends the stage
                env=os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": _THREADS, _MARK: mark},
            )
            how = self._wait(started, seconds)
            _end(started, mark)
        if how != "passed":
            print("\n".join(log.read_text("utf-8", "replace").splitlines()[-_SHOWN:]), flush=True)
        return how

    def _wait(self, started: "subprocess.Popen[bytes]", seconds: float) -> str:
        deadline = self._clock() + seconds
        while (left := deadline - self._clock()) > 0:
            try:
                code = started.wait(min(RENEWED, left))
            except subprocess.TimeoutExpired:
                self._renew()
                continue
            return "passed" if code == 0 else f"failed with code {code}"
        return f"took longer than {seconds:.0f} s"

    def _renew(self) -> None:
        with self._renewing:
            self._pack()

    def _pack(self) -> None:
        packing, summing = self._out / ".results", self._out / ".summary"
        with tarfile.open(packing, "w:gz") as archive:
            archive.add(self._work, arcname="results", filter=_small)
        packing.replace(self._out / "results.tar.gz")
        summing.write_text(json.dumps({"stages": self.cells}, indent=1) + "\n", encoding="utf-8")
        summing.replace(self._out / "summary.json")


def _small(file: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if file.size <= _LARGEST:
        return file
    print(f"{file.name} has {file.size >> 20} MiB and is left out of the archive", flush=True)
    return None


def _end(started: "subprocess.Popen[bytes]", mark: str) -> None:
    """Ends all that a stage left running. A process that even the kernel cannot end is left behind."""
    for wanted in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _GRACE
        for running in (left := _left(mark)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(running, wanted)
        while left and time.monotonic() < deadline:
            started.poll()  # reaps it
            left = _left(mark)
        if not left:
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(_GRACE)  # a process loses its environment before it can be reaped
            return


def _left(mark: str) -> list[int]:
    """The marked processes, of two looks: one that becomes another program has no environment for a moment."""
    found = _marked(mark)
    time.sleep(_LOOK)
    return sorted({*found, *_marked(mark)})


def _marked(mark: str) -> list[int]:
    """The processes whose environment holds the mark; none of those that have ended."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{_MARK}={mark}".encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
    return found


def words(rehearsal: bool, venv: Path) -> dict[str, str]:
    """What stands for the words in braces of a command."""
    found = sorted(str(path.relative_to(HOME)) for path in HOME.glob("tests/*/*/test_triton_*.py"))
    triton_tests = [path for path in found if "compile" not in path]  # for other GPUs: nothing that this one shows
    tiny = "configs/serve/tiny-dummy.yaml"
    shape = "configs/shape/tiny" if rehearsal else "configs/shape/llama-3.1-8b"
    return {
        "bin": str(venv / "bin"),
        "python": str(venv / "bin/python"),
        "config": tiny if rehearsal else "configs/serve/llama-3.1-8b-dummy.yaml",
        "tiny": tiny,
        "kernels": "auto" if rehearsal else "triton",
        "shape": shape,
        "triton_tests": " ".join(triton_tests),
        "small": "--quick" if rehearsal else "",
        "vocabulary": "--vocabulary 4096" if rehearsal else "",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("call", choices=CALLS)
    parser.add_argument("--out", type=Path, required=True, help="folder of the two files")
    parser.add_argument("--seconds", type=float, help=f"of all stages together, by default {CALL_SECONDS}")
    parser.add_argument("--venv", type=Path, default=HOME / ".venv", help="the environment that make gpu-setup makes")
    parser.add_argument("--rehearsal", action="store_true", help="small, on any machine: shows that every stage runs")
    given = parser.parse_args()
    stages, seconds = CALLS[given.call], given.seconds or CALL_SECONDS
    if given.rehearsal:
        slower = (replace(stage, seconds=_SLOWER * stage.seconds, beside=False) for stage in stages if stage.rehearsed)
        stages = tuple(slower)
        seconds = given.seconds or _SLOWER * CALL_SECONDS
    call = Call(stages, given.out.resolve(), words(given.rehearsal, given.venv.absolute()), seconds=seconds)
    return 0 if call.run() else 1


if __name__ == "__main__":
    sys.exit(main())

"""Runs one of the three calls of scripts/gpu_calls.py: stage by stage, each in processes of its own.

    python scripts/gpu_call.py first --out results

A stage that fails or hangs is ended with all that it started, and costs itself and the stages that need it. Two files
are left under --out: `results.tar.gz`, all that the stages have written, and `summary.json`. Both are renewed every 20
seconds and replaced at once, so that what ends the call early finds them whole. Exits with code 1 if a stage failed.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_calls import CALL_SECONDS, CALLS, Stage

HOME = Path(__file__).resolve().parents[1]
RENEWED = 20.0
"""Seconds between two archives."""
_GRACE = 5.0
"""Seconds for a stage to end by itself once it is asked to."""
_SMALLEST = 5.0
"""Seconds left below which no stage is started."""

Cell = dict[str, Any]


class Call:
    """A call in progress. `words` fill the commands; `clock` gives seconds."""

    def __init__(
        self, stages: tuple[Stage, ...], out: Path, words: dict[str, str], *,
        seconds: float, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._stages = stages
        self._out = out
        self._work = out / ".work"
        self._words = words | {"out": str(self._work)}
        self._clock = clock
        self._ends = clock() + seconds
        self.cells: list[Cell] = []

    def run(self) -> bool:
        """Whether every stage passed that could run."""
        self._work.mkdir(parents=True, exist_ok=True)
        ended: dict[str, str] = {}
        for stage in self._stages:
            began, left = self._clock(), self._ends - self._clock()
            if stage.needs is not None and ended.get(stage.needs, "passed") != "passed":
                ended[stage.name] = f"left out: {stage.needs} {ended[stage.needs]}"
            elif left < _SMALLEST:
                ended[stage.name] = "left out: the call's time is over"
            else:
                print(f"== {stage.name}, at most {min(stage.seconds, left):.0f} s", flush=True)
                ended[stage.name] = self._run(stage, min(stage.seconds, left))
            self.cells.append(
                {"stage": stage.name, "ended": ended[stage.name], "seconds": round(self._clock() - began, 1)}
            )
            print(f"== {stage.name}: {ended[stage.name]}", flush=True)
            self._renew()
        shutil.rmtree(self._work)
        return all(how == "passed" for how in ended.values())

    def _run(self, stage: Stage, seconds: float) -> str:
        command = stage.command.format(**self._words)
        (self._work / "logs").mkdir(exist_ok=True)
        with open(self._work / f"logs/{stage.name}.log", "wb") as log:
            started = subprocess.Popen(
                ["sh", "-c", command],
                cwd=HOME,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
            deadline = self._clock() + seconds
            while (left := deadline - self._clock()) > 0:
                try:
                    code = started.wait(min(RENEWED, left))
                except subprocess.TimeoutExpired:
                    self._renew()
                    continue
                _end(started)  # what it left running
                return "passed" if code == 0 else f"failed with code {code}"
            _end(started)
            return f"took longer than {seconds:.0f} s"

    def _renew(self) -> None:
        packing, summing = self._out / ".results", self._out / ".summary"
        with tarfile.open(packing, "w:gz") as archive:
            archive.add(self._work, arcname="results")
        packing.replace(self._out / "results.tar.gz")
        summing.write_text(json.dumps({"stages": self.cells}, indent=1) + "\n", encoding="utf-8")
        summing.replace(self._out / "summary.json")


def _end(started: "subprocess.Popen[bytes]") -> None:
    """Ends a stage's whole process group. A process that even the kernel cannot end is left behind."""
    for wanted in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(started.pid, wanted)
        except ProcessLookupError:
            return
        try:
            started.wait(_GRACE)
        except subprocess.TimeoutExpired:
            continue


def words(rehearsal: bool, venv: Path) -> dict[str, str]:
    """What stands for the words in braces of a command."""
    triton_tests = sorted(str(path.relative_to(HOME)) for path in HOME.glob("tests/*/*/test_triton_*.py"))
    shape = "configs/shape/tiny" if rehearsal else "configs/shape/llama-3.1-8b"
    return {
        "bin": str(venv / "bin"),
        "python": str(venv / "bin/python"),
        "config": "configs/serve/tiny-dummy.yaml" if rehearsal else "configs/serve/llama-3.1-8b-dummy.yaml",
        "shape": shape,
        "triton_tests": " ".join(triton_tests),
        "small": "--quick" if rehearsal else "",
        "vocabulary": "--vocabulary 4096" if rehearsal else "",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("call", choices=CALLS)
    parser.add_argument("--out", type=Path, required=True, help="folder of the two files")
    parser.add_argument("--seconds", type=float, default=CALL_SECONDS, help="of all stages together")
    parser.add_argument("--venv", type=Path, default=HOME / ".venv", help="the environment that make gpu-setup makes")
    parser.add_argument("--rehearsal", action="store_true", help="small, on any machine: shows that every stage runs")
    given = parser.parse_args()
    stages = CALLS[given.call]
    if given.rehearsal:
        stages = tuple(stage for stage in stages if stage.rehearsed)
    call = Call(stages, given.out.resolve(), words(given.rehearsal, given.venv.absolute()), seconds=given.seconds)
    return 0 if call.run() else 1


if __name__ == "__main__":
    sys.exit(main())

"""Seconds of a step by phase, and the time that the lane worked on it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from contracts.step import StepOutput


class StepClock:
    """`phase` times parts of a step by the wall; `stamp` adds them to its output, with the CPU time over the lane's
    threads and the times at which the step began and ended.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._phases: dict[str, float] = {}
        self._cpu = 0.0
        self._began = 0.0

    def start(self) -> None:
        self._phases = {}
        self._cpu = time.process_time()
        self._began = time.monotonic()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._phases[name] = self._phases.get(name, 0.0) + time.perf_counter() - began

    def stamp(self, output: StepOutput) -> StepOutput:
        busy = (time.process_time() - self._cpu) / self._threads
        return replace(output, phase_seconds=self._phases, busy_seconds=busy, began=self._began, ended=time.monotonic())

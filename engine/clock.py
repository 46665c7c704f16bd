"""Seconds of a step by phase, and the time that the lane worked on it: by the host's clock, or by the device's events.

A worker calls `start`, marks phases, and `stop`; what `start` gave is asked when the step's results are read.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from engine.cuda import Event, Runtime


@dataclass(frozen=True, slots=True)
class Times:
    """Of one step, as StepOutput has them."""

    phases: dict[str, float]
    busy: float
    began: float
    ended: float


ReadTimes = Callable[[], Times]


class Clock(Protocol):
    def start(self) -> ReadTimes: ...

    def phase(self, name: str) -> AbstractContextManager[None]: ...

    def stop(self) -> None: ...


class StepClock:
    """By the wall; busy is the CPU time over the lane's threads. What runs after a step's times were read is told with
    the next step's.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        # Of several threads only the process's time is known, a lane's reading and writing of frames included.
        self._cpu_time = time.thread_time if threads == 1 else time.process_time
        self._phases: dict[str, float] = {}
        self._busy = 0.0
        self._cpu = 0.0

    def start(self) -> ReadTimes:
        self._cpu = self._cpu_time()
        began = time.monotonic() - sum(self._phases.values())
        return lambda: self._read(began)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._phases[name] = self._phases.get(name, 0.0) + time.perf_counter() - began

    def stop(self) -> None:
        now = self._cpu_time()
        self._busy += (now - self._cpu) / self._threads
        self._cpu = now

    def _read(self, began: float) -> Times:
        self.stop()
        phases, busy = self._phases, self._busy
        self._phases, self._busy = {}, 0.0
        return Times(phases, busy, began, time.monotonic())


@dataclass(frozen=True, slots=True)
class _Mark:
    name: str
    since: Event
    until: Event


class EventClock:
    """By events of a stream. Phases that have not run when a step's times are read are told with the step after: no
    second is lost, and none is waited for.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._marks: list[_Mark] = []
        self._last = self._event()
        self._late: list[_Mark] = []
        self._anchor = (self._last, time.monotonic())
        """An event that has passed, and when."""

    def start(self) -> ReadTimes:
        marks: list[_Mark] = []
        self._marks = marks
        self._last = self._event()
        return lambda: self._read(marks)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        since = self._last
        yield
        self._last = self._event()
        self._marks.append(_Mark(name, since, self._last))

    def stop(self) -> None:
        """The last phase's end is the step's."""

    def _read(self, marks: list[_Mark]) -> Times:
        phases: dict[str, float] = {}
        began = self._time_of(marks[0].since)
        passed = [mark for mark in (*self._late, *marks) if mark.until.query()]
        marks[:] = [mark for mark in marks if mark not in passed]
        self._late = marks
        for mark in passed:
            phases[mark.name] = phases.get(mark.name, 0.0) + mark.since.elapsed_time(mark.until) / 1e3
        last = passed[-1].until if passed else marks[0].since  # results may be there before their phase has ended
        ended = self._time_of(last)
        self._anchor = (last, ended)
        return Times(phases, sum(phases.values()), began, ended)

    def _time_of(self, event: Event) -> float:
        anchor, when = self._anchor
        return when + anchor.elapsed_time(event) / 1e3

    def _event(self) -> Event:
        event = self._runtime.event()
        event.record()
        return event

"""Measures a step's seconds by phase and the lane's busy time, by the host's clock or by events of the device.

A worker calls `start`, marks phases, and calls `stop`. `start` returns a function that reads the times, called when the
step's results are read.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from aerie.engine.cuda import Event, Runtime


@dataclass(frozen=True, slots=True)
class Times:
    """Times of one step, as StepOutput reports them."""

    phases: dict[str, float]
    busy: float
    began: float
    ended: float


ReadTimes = Callable[[], Times]


class Clock(Protocol):
    def start(self) -> ReadTimes: ...

    def phase(self, name: str) -> AbstractContextManager[None]:
        """The time inside is the phase's, but for that of a phase within it."""

    def cut(self) -> None:
        """The device may stand idle until `begin`."""

    def begin(self) -> None:
        """Call it right before the device gets the first work of a step, or the first after a cut."""

    def stop(self) -> None: ...


class StepClock:
    """Phases by the lane's CPU time if it has one thread, so that pauses of a busy machine do not lengthen them; else
    by wall clock. Busy time is CPU time divided by the lane's threads. What runs after a step's times were read is
    reported with the next step.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        # With several threads only the process's time is known, which includes the lane's reading and writing of
        # frames.
        self._cpu_time = time.thread_time if threads == 1 else time.process_time
        self._phase_time = time.thread_time if threads == 1 else time.perf_counter
        self._phases: dict[str, float] = {}
        self._inside = 0.0
        """Time in phases since the last reading."""
        self._busy = 0.0
        self._cpu = 0.0

    def start(self) -> ReadTimes:
        self._cpu = self._cpu_time()
        began = time.monotonic() - self._inside
        return lambda: self._read(began)

    def phase(self, name: str) -> "_Phase":
        return _Phase(self, name)

    def cut(self) -> None:
        """The host is the device."""

    def begin(self) -> None:
        """As above."""

    def stop(self) -> None:
        now = self._cpu_time()
        self._busy += (now - self._cpu) / self._threads
        self._cpu = now

    def _read(self, began: float) -> Times:
        self.stop()
        phases, busy = self._phases, self._busy
        self._phases, self._busy, self._inside = {}, 0.0, 0.0
        return Times(phases, busy, began, time.monotonic())


class _Phase:
    """Of a StepClock. Not a generator: between two steps no code is in the caches, and each line counts."""

    __slots__ = ("_clock", "_name", "_since", "_within")

    def __init__(self, clock: StepClock, name: str) -> None:
        self._clock = clock
        self._name = name

    def __enter__(self) -> None:
        self._within = self._clock._inside
        self._since = self._clock._phase_time()

    def __exit__(self, *error: object) -> None:
        clock = self._clock
        whole = clock._phase_time() - self._since
        phases = clock._phases
        phases[self._name] = phases.get(self._name, 0.0) + whole - (clock._inside - self._within)
        clock._inside = self._within + whole


@dataclass(frozen=True, slots=True)
class _Mark:
    name: str
    since: Event
    until: Event


class EventClock:
    """By events of a stream. Phases that have not run when a step's times are read are reported with the next step: no
    time is lost, and nothing waits.

    A step begins with the first copy of its plan, not when the host begins to prepare it: while the host prepares, the
    device is idle.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._marks: list[_Mark] = []
        self._last: Event | None = None
        """The end of the phase before; None until the device gets work."""
        self._late: list[_Mark] = []
        self._anchor = (self._event(), time.monotonic())
        """An event that has passed, and the host's time of it."""

    def start(self) -> ReadTimes:
        marks: list[_Mark] = []
        self._marks = marks
        self._last = None
        return lambda: self._read(marks)

    def cut(self) -> None:
        self._last = None

    def begin(self) -> None:
        if self._last is None:
            self._last = self._event()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        yield
        until = self._event()
        self._marks.append(_Mark(name, self._last or until, until))
        self._last = until

    def stop(self) -> None:
        """The last phase ends when the step ends."""

    def _read(self, marks: list[_Mark]) -> Times:
        phases: dict[str, float] = {}
        began = self._time_of(marks[0].since)
        passed = [mark for mark in (*self._late, *marks) if mark.until.query()]
        marks[:] = [mark for mark in marks if mark not in passed]
        self._late = marks
        for mark in passed:
            phases[mark.name] = phases.get(mark.name, 0.0) + mark.since.elapsed_time(mark.until) / 1e3
        last = passed[-1].until if passed else marks[0].since  # results may arrive before their phase has ended
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

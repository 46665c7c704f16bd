"""Clocks for replays and for real runs that pauses of a busy machine must not change."""

import time
from dataclasses import dataclass


@dataclass(slots=True)
class Clock:
    """Virtual seconds."""

    now: float = 1.0

    def __call__(self) -> float:
        return self.now


class CpuClock:
    """Seconds of this thread's CPU time, as those of a machine that does nothing else. Setting `now` skips idle time.
    An inline lane's steps take their time on it.
    """

    def __init__(self) -> None:
        self._skipped = 1.0

    @property
    def now(self) -> float:
        return time.thread_time() + self._skipped

    @now.setter
    def now(self, value: float) -> None:
        self._skipped += value - self.now

    def __call__(self) -> float:
        return self.now

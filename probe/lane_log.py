"""A lane that records when the host launched and awaited each step, and when the worker ran it."""

import time
from collections import deque
from dataclasses import dataclass, field

from aerie.contracts.grammar import Grammar, Prepared
from aerie.contracts.step import Capacity, Lane, StepKind, StepOutput, StepPlan


@dataclass(slots=True)
class StepTimes:
    """The times of one step, in seconds of the monotonic clock that all processes of a machine share."""

    number: int
    kind: StepKind
    rows: int
    planning: float
    """When the host began to work on this step: the end of its last wait."""
    launched: float
    waiting: float = 0.0
    settled: float = 0.0
    began: float = 0.0
    ended: float = 0.0
    busy: float = 0.0
    """Seconds that the lane worked."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds by phase, in their order."""
    committed: int = 0


class LaneLog:
    """Implements contracts.step.Lane over another lane; `steps` holds all settled steps."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._flying: deque[StepTimes] = deque()
        self._free_at = time.monotonic()
        self.steps: list[StepTimes] = []

    @property
    def capacity(self) -> Capacity:
        return self._lane.capacity

    def launch(self, plan: StepPlan) -> None:
        self._lane.launch(plan)
        now = time.monotonic()
        self._flying.append(StepTimes(plan.number, plan.kind, len(plan.rows), self._free_at, now))
        self._free_at = now

    def prepare(self, request: int, grammar: Grammar) -> None:
        self._lane.prepare(request, grammar)

    def prepared(self, seconds: float = 0.0) -> list[Prepared]:
        return self._lane.prepared(seconds)

    def forget(self, request: int) -> None:
        self._lane.forget(request)

    def settle(self) -> StepOutput:
        waiting = time.monotonic()
        output = self._lane.settle()
        times = self._flying.popleft()
        times.waiting, times.settled = waiting, time.monotonic()
        times.began, times.ended, times.phases = output.began, output.ended, output.phase_seconds
        times.busy = output.busy_seconds
        times.committed = int(output.counts.sum())
        self._free_at = times.settled
        self.steps.append(times)
        return output

    def close(self) -> None:
        self._lane.close()

"""Lanes around a worker in the same process: late, at a given speed, or dying."""

import random
import time
from collections import deque
from collections.abc import Callable

from aerie.contracts.errors import EngineDead
from aerie.contracts.step import Capacity, StepOutput, StepPlan
from aerie.contracts.worker import Worker
from aerie.engine.lanes.preparing import Preparing


class QueueLane(Preparing):
    """At most two steps in flight, settled in order; subclasses say when a step runs."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.worker = worker
        self._plans: deque[StepPlan] = deque()
        self._outputs: deque[StepOutput] = deque()
        self.most_in_flight = 0

    @property
    def capacity(self) -> Capacity:
        return self.worker.capacity

    @property
    def in_flight(self) -> int:
        return len(self._plans) + len(self._outputs)

    def launch(self, plan: StepPlan) -> None:
        assert self.in_flight < 2, "three steps in flight"
        self._plans.append(plan)
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def settle(self) -> StepOutput:
        if not self._outputs:
            self._run_one()
        return self._outputs.popleft()

    def close(self) -> None:
        self.worker.close()

    def _run_one(self) -> None:
        self.worker.step(self._plans.popleft(), self._outputs.append)


class DelayedLane(QueueLane):
    """Runs a step at its launch, or as late as its settling, at random: the results come late either way."""

    def __init__(self, worker: Worker, seed: int = 0) -> None:
        super().__init__(worker)
        self._random = random.Random(seed)

    def launch(self, plan: StepPlan) -> None:
        super().launch(plan)
        while self._plans and self._random.random() < 0.5:
            self._run_one()


class TimedLane(QueueLane):
    """A device that works `seconds` on a step, one after the other, whatever the host does meanwhile.

    A function says so of each plan.
    """

    def __init__(
        self,
        worker: Worker,
        seconds: float | Callable[[StepPlan], float],
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(worker)
        self._seconds = seconds if callable(seconds) else lambda plan: seconds
        self._clock = clock
        self._sleep = sleep
        self._ready: deque[float] = deque()
        self._free_at = 0.0

    def launch(self, plan: StepPlan) -> None:
        super().launch(plan)
        self._free_at = max(self._clock(), self._free_at) + self._seconds(plan)
        self._ready.append(self._free_at)

    def settle(self) -> StepOutput:
        output = super().settle()  # inside the wait: what the fake computes is not the host's work
        wait = self._ready.popleft() - self._clock()
        if wait > 0:
            self._sleep(wait)
        return output


class DyingLane(QueueLane):
    """A lane whose worker is gone after `steps` settled steps, noticed at a launch or in settle."""

    def __init__(self, worker: Worker, steps: int, *, at_launch: bool = False) -> None:
        super().__init__(worker)
        self._left = steps
        self._at_launch = at_launch

    def launch(self, plan: StepPlan) -> None:
        if self._at_launch and self._left <= 0:
            raise EngineDead("the lane has died; restart the server")
        super().launch(plan)

    def settle(self) -> StepOutput:
        if self._left <= 0:
            raise EngineDead("the lane has died; restart the server")
        self._left -= 1
        return super().settle()

"""A lane that runs each step at launch: for tests, debugging and machines with one core."""

from collections import deque

from aerie.contracts.step import Capacity, StepOutput, StepPlan, Worker
from aerie.engine.lanes.preparing import Preparing


class InlineLane(Preparing):
    """Implements contracts.step.Lane over a worker in this process."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._worker = worker
        self._outputs: deque[StepOutput] = deque()

    @property
    def capacity(self) -> Capacity:
        return self._worker.capacity

    def launch(self, plan: StepPlan) -> None:
        self._worker.step(plan, self._outputs.append)

    def settle(self) -> StepOutput:
        return self._outputs.popleft()

    def close(self) -> None:
        self._worker.close()

"""A lane that runs each step at launch: for tests, debugging and machines with one core."""

from queue import SimpleQueue

from aerie.contracts.step import Capacity, StepOutput, StepPlan
from aerie.contracts.worker import Worker
from aerie.engine.lanes.preparing import Preparing


class InlineLane(Preparing):
    """Implements contracts.step.Lane over a worker in this process."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._worker = worker
        self._outputs: SimpleQueue[StepOutput] = SimpleQueue()

    @property
    def capacity(self) -> Capacity:
        return self._worker.capacity

    def launch(self, plan: StepPlan) -> None:
        self._worker.step(plan, self._outputs.put)

    def settle(self) -> StepOutput:
        return self._outputs.get()

    def close(self) -> None:
        self._worker.close()

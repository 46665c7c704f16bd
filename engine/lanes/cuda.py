"""A GPU's lane: in the scheduler's own process, since launching costs the host little and the device does the waiting.

Work goes to one stream. A step's results are copied to the host right after acceptance, and settling waits for that
copy alone. Built by the composition root. A device error ends the lane and loses all work in flight.
"""

from collections import deque
from typing import Protocol

import torch

from aerie.contracts.errors import EngineDead
from aerie.contracts.grammar import Guiding
from aerie.contracts.step import Capacity, StepOutput, StepPlan
from aerie.engine.cuda import Runtime
from aerie.engine.lanes.preparing import Preparing
from aerie.engine.step.results import Pending

_IN_FLIGHT = 2
"""Steps: the transfer has one copy of its page-locked memory for each."""


class Launcher(Guiding, Protocol):
    """A worker that launches a step without waiting for it."""

    @property
    def capacity(self) -> Capacity: ...

    @property
    def runtime(self) -> Runtime | None: ...

    def launch(self, plan: StepPlan) -> Pending: ...

    def close(self) -> None: ...


class CudaLane(Preparing):
    """Implements contracts.step.Lane."""

    def __init__(self, worker: Launcher) -> None:
        assert worker.runtime is not None, "the worker was built for a CPU"
        super().__init__(worker)
        self._worker: Launcher | None = worker
        self._capacity = worker.capacity
        self._runtime = worker.runtime
        self._runtime.catch_up()
        self._flying: deque[Pending] = deque()

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def launch(self, plan: StepPlan) -> None:
        assert self._worker is not None, "the lane is closed"
        assert len(self._flying) < _IN_FLIGHT, "two steps are in flight already; settle first"
        try:
            with self._runtime.active():
                self._proceed()  # a first step, before which none was settled
                self._flying.append(self._worker.launch(plan))
        except Exception as error:  # of any kind: Triton's are no RuntimeErrors, and libraries assert
            raise _dead(error) from error

    def settle(self) -> StepOutput:
        pending = self._flying.popleft()
        try:
            with self._runtime.active():
                output = pending.output()
                self._proceed()  # the masks of the next step depend on what this one has committed
            return output
        except Exception as error:
            raise _dead(error) from error

    def _proceed(self) -> None:
        for pending in self._flying:
            pending.proceed()

    def close(self) -> None:
        """Releases weights, pools and graphs, so that the process may load another model."""
        self._flying.clear()
        if self._worker is not None:
            self._worker.close()
            self._worker = None
            self._runtime.release()


def _dead(error: Exception) -> EngineDead:
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    if isinstance(error, torch.OutOfMemoryError):
        return EngineDead(
            f"the GPU ran out of memory in a step: {reason}; lower engine.memory_share, scheduler.prefill_chunk or "
            f"scheduler.max_running"
        )
    return EngineDead(f"the GPU failed in a step, and its requests are lost: {reason}")

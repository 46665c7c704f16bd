"""The worker without speculation: the baseline that speculation must equal in text and beat in time."""

import torch

from contracts.step import Capacity, StepKind, StepOutput, StepPlan
from engine.batch import apply_changes
from engine.clock import StepClock
from engine.passes import decode, prefill, publish
from engine.results import plain_output
from engine.state import DeviceState


class PlainWorker:
    """Implements contracts.step.Worker; one token a row and step."""

    def __init__(self, state: DeviceState) -> None:
        self._state = state
        self._clock = StepClock(torch.get_num_threads())

    @property
    def capacity(self) -> Capacity:
        return self._state.capacity

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> StepOutput:
        self._clock.start()
        apply_changes(plan, self._state.tables, self._state.needs)
        filling = plan.kind == StepKind.PREFILL
        with self._clock.phase("prefill" if filling else "verify"):
            result = (prefill if filling else decode)(self._state, plan, taps=False)
            publish(self._state, plan, result)
        return self._clock.stamp(plain_output(plan, result))

    def close(self) -> None:
        """Nothing to give back: the process's end does."""

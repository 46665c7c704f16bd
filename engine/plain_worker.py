"""The worker without speculation: the baseline that speculation must equal in text and beat in time."""

import torch

from contracts.step import Capacity, StepOutput, StepPlan
from engine.batch import stage_changes
from engine.passes import plain_pass, publish, stage_decode, stage_prefill
from engine.results import Pending, plain_answer, send
from engine.state import DeviceState


class PlainWorker:
    """Implements contracts.step.Worker; one token a row and step."""

    def __init__(self, state: DeviceState) -> None:
        self._state = state

    @property
    def capacity(self) -> Capacity:
        return self._state.capacity

    def step(self, plan: StepPlan) -> StepOutput:
        return self.launch(plan).output()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Pending:
        """Launches a step's work; waits for nothing on a device that works by itself."""
        state = self._state
        state.transfer.begin()
        times = state.clock.start()
        with state.transfer.together():
            change = stage_changes(plan, state.tables, state.needs, state.transfer)
            staged = stage_prefill(state, plan) if plan.decode is None else stage_decode(state, plan)
        change()
        with state.clock.phase("prefill" if plan.decode is None else "verify"):
            result = plain_pass(state, plan, staged, taps=False)
            publish(state, staged, result)
        answer = plain_answer(result)
        pending = send(answer, state.transfer, number=plan.number, rows=plan.rows.size, width=1, times=times)
        state.clock.stop()
        return pending

    def close(self) -> None:
        """Nothing to give back: the process's end does."""

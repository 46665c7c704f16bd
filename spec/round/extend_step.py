"""A step that drafts nothing and extends the drafter: with its prompts' chunks, or with one token of each row."""

from aerie.contracts.step import StepPlan
from aerie.engine.step.clock import ReadTimes
from aerie.engine.step.masked import Sent
from aerie.engine.step.plain_step import Extend, plain_step
from aerie.engine.step.state import DeviceState
from aerie.spec.drafters.drafter import Drafter
from aerie.spec.round.extend import extend_pass, stage_extend


def extend_step(state: DeviceState, drafter: Drafter, plan: StepPlan, times: ReadTimes, sent: Sent) -> None:
    def stage() -> Extend:
        staged = stage_extend(plan, state.tables.page_size, state.transfer)
        return lambda result: extend_pass(drafter, state.tables, result, staged)

    plain_step(state, plan, times, sent, stage, taps=bool(drafter.needs.taps))

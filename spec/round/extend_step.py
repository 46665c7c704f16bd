"""A step that drafts nothing and extends the drafter: with its prompts' chunks, or with one token of each row."""

from aerie.contracts.step import StepPlan
from aerie.engine.step.batch import stage_changes
from aerie.engine.step.clock import ReadTimes
from aerie.engine.step.passes import plain_pass, publish, stage_decode, stage_prefill
from aerie.engine.step.results import plain_answer, send
from aerie.engine.step.skip_finished import rested
from aerie.engine.step.state import DeviceState
from aerie.spec.drafters.drafter import Drafter
from aerie.spec.round.extend import extend_pass, stage_extend
from aerie.spec.round.step import Sent


def extend_step(state: DeviceState, drafter: Drafter, plan: StepPlan, times: ReadTimes, sent: Sent) -> None:
    """Answers before it extends the drafter, as `draft_step` does."""
    resting = rested(state, plan, times)
    if resting is not None:
        sent(resting)
        return
    with state.clock.phase("prefill" if plan.decode is None else "verify"):
        with state.transfer.together():
            change = stage_changes(plan, state.tables, state.transfer)
            staged = stage_prefill(state, plan) if plan.decode is None else stage_decode(state, plan)
            staged_extend = stage_extend(plan, state.tables.page_size, state.transfer)
        change()
        result = plain_pass(state, plan, staged, taps=bool(drafter.needs.taps))
        pending = send(plain_answer(result), state.transfer, plan, times)
    sent(pending)
    with state.clock.phase("extend"):
        seeds = extend_pass(drafter, state.tables, result, staged_extend)
        publish(state, staged, result, seeds)

"""A step that drafts nothing and extends the head: with its prompts' chunks, or with one token of each row."""

from contracts.step import StepPlan
from engine.batch import stage_changes
from engine.clock import ReadTimes
from engine.passes import plain_pass, publish, stage_decode, stage_prefill
from engine.resting import rested
from engine.results import plain_answer, send
from engine.state import DeviceState
from spec.draft_step import Sent
from spec.extend import extend_pass, stage_following
from spec.head import Head


def follow_step(state: DeviceState, head: Head, plan: StepPlan, times: ReadTimes, sent: Sent) -> None:
    """Answers before it extends the head, as `draft_step` does."""
    resting = rested(state, plan, times)
    if resting is not None:
        sent(resting)
        return
    with state.clock.phase("prefill" if plan.decode is None else "verify"):
        with state.transfer.together():
            change = stage_changes(plan, state.tables, state.transfer)
            staged = stage_prefill(state, plan) if plan.decode is None else stage_decode(state, plan)
            pairs = stage_following(plan, state.tables.page_size, state.transfer)
        change()
        result = plain_pass(state, plan, staged, taps=True)
        pending = send(plain_answer(result), state.transfer, plan, times)
    sent(pending)
    with state.clock.phase("extend"):
        seeds = extend_pass(head, state.tables, result, pairs)
    publish(state, staged, result, seeds)

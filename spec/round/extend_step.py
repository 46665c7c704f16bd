"""A step that drafts nothing and extends the drafter: with its prompts' chunks, or with one token of each row."""

from aerie.contracts.step import StepPlan
from aerie.engine.sampling.masks import Masks
from aerie.engine.step.batch import stage_changes
from aerie.engine.step.clock import ReadTimes
from aerie.engine.step.masked import Sent, choose_then
from aerie.engine.step.passes import choose_next, plain_pass, publish, stage_decode, stage_prefill
from aerie.engine.step.results import plain_answer, send
from aerie.engine.step.skip_finished import rested
from aerie.engine.step.state import DeviceState
from aerie.spec.drafters.drafter import Drafter
from aerie.spec.round.extend import extend_pass, stage_extend


def extend_step(state: DeviceState, drafter: Drafter, plan: StepPlan, times: ReadTimes, sent: Sent) -> None:
    """Answers before it extends the drafter, as `draft_step` does."""
    resting = rested(state, plan, times)
    if resting is not None:
        sent(resting)
        return
    decodes, needs = plan.decode is not None, state.needs.of(plan.rows)
    phase = "verify" if decodes else "prefill"
    with state.clock.phase(phase):
        with state.transfer.together():
            change = stage_changes(plan, state.tables, state.transfer)
            staged = stage_decode(state, plan) if decodes else stage_prefill(state, plan)
            staged_extend = stage_extend(plan, state.tables.page_size, state.transfer)
        change()
        passed = plain_pass(state, staged, taps=bool(drafter.needs.taps))

    def rest(sent: Sent, masks: Masks | None) -> None:
        with state.clock.phase(phase):
            result = choose_next(state, passed, needs, masks=masks, logprobs=plan.logprobs)
            pending = send(plain_answer(result), state.transfer, plan, times)
        sent(pending)
        with state.clock.phase("extend"):
            seeds = extend_pass(drafter, state.tables, result, staged_extend)
            publish(state, staged, result, seeds)

    choose_then(state, sent, rest, passed.places, late=decodes)

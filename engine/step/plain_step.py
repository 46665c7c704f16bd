"""A whole step without drafts, of prompt chunks or of one token for each row: stage, run the pass, choose, publish to
the next step, send the answer.
"""

from collections.abc import Callable

from torch import Tensor

from aerie.contracts.step import StepPlan
from aerie.engine.sampling.masks import Masks
from aerie.engine.step.batch import stage_changes
from aerie.engine.step.clock import ReadTimes
from aerie.engine.step.masked import Sent, choose_then
from aerie.engine.step.passes import PassResult, choose_next, plain_pass, publish, stage_decode, stage_prefill
from aerie.engine.step.results import plain_answer, send
from aerie.engine.step.skip_finished import rested
from aerie.engine.step.state import DeviceState

Extend = Callable[[PassResult], Tensor | None]
"""Extends a drafter with the tokens of a pass, or keeps them for later; returns the seeds of the next drafts."""


def plain_step(
    state: DeviceState,
    plan: StepPlan,
    times: ReadTimes,
    sent: Sent,
    stage_extend: Callable[[], Extend] | None = None,
    *,
    taps: bool = False,
) -> None:
    """With `stage_extend` it answers before it extends the drafter, as `draft_step` does."""
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
            extend = None if stage_extend is None else stage_extend()
        change()
        passed = plain_pass(state, staged, taps=taps)

    def rest(sent: Sent, masks: Masks | None) -> None:
        with state.clock.phase(phase):
            result = choose_next(state, passed, needs, masks=masks, logprobs=plan.logprobs)
            if extend is None:
                publish(state, staged, result)
            pending = send(plain_answer(result), state.transfer, plan, times)
        sent(pending)
        if extend is not None:
            with state.clock.phase("extend"):
                publish(state, staged, result, extend(result))

    choose_then(state, sent, rest, passed.places, late=decodes)

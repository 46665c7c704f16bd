"""A whole step without drafts, of prompt chunks or of one token for each row: stage, run the pass, choose, publish to
the next step, send the answer. Both workers call it for rows that no head extends.
"""

from aerie.contracts.step import StepPlan
from aerie.engine.sampling.masks import Masks
from aerie.engine.step.batch import stage_changes
from aerie.engine.step.clock import ReadTimes
from aerie.engine.step.masked import Sent, choose_then
from aerie.engine.step.passes import choose_next, plain_pass, publish, stage_decode, stage_prefill
from aerie.engine.step.results import plain_answer, send
from aerie.engine.step.skip_finished import rested
from aerie.engine.step.state import DeviceState


def plain_step(state: DeviceState, plan: StepPlan, times: ReadTimes, sent: Sent) -> None:
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
        change()
        passed = plain_pass(state, staged, taps=False)

    def rest(sent: Sent, masks: Masks | None) -> None:
        with state.clock.phase(phase):
            result = choose_next(state, passed, needs, masks=masks, logprobs=plan.logprobs)
            publish(state, staged, result)
            pending = send(plain_answer(result), state.transfer, plan, times)
        sent(pending)

    choose_then(state, sent, rest, passed.places, late=decodes)

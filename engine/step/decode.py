"""A whole step without drafts: stage, run the pass, publish to the next step, send the answer. Both workers call it for
rows that no head extends.
"""

from aerie.contracts.step import StepPlan
from aerie.engine.step.batch import stage_changes
from aerie.engine.step.clock import ReadTimes
from aerie.engine.step.passes import decode, publish, stage_decode
from aerie.engine.step.results import Pending, plain_answer, send
from aerie.engine.step.skip_finished import rested
from aerie.engine.step.state import DeviceState


def decode_step(state: DeviceState, plan: StepPlan, times: ReadTimes) -> Pending:
    resting = rested(state, plan, times)
    if resting is not None:
        return resting
    with state.clock.phase("verify"):
        with state.transfer.together():
            change = stage_changes(plan, state.tables, state.transfer)
            staged = stage_decode(state, plan)
        change()
        result = decode(state, staged, state.needs.of(plan.rows), taps=False, logprobs=plan.logprobs)
        publish(state, staged, result)
        return send(plain_answer(result), state.transfer, plan, times)

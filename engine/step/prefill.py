"""A whole step of prompt chunks: stage, run the pass, publish to the next step, send the answer. Both workers call it
when no head is extended.
"""

from aerie.contracts.step import StepPlan
from aerie.engine.step.batch import stage_changes
from aerie.engine.step.clock import ReadTimes
from aerie.engine.step.passes import prefill, publish, stage_prefill
from aerie.engine.step.results import Pending, plain_answer, send
from aerie.engine.step.state import DeviceState


def prefill_step(state: DeviceState, plan: StepPlan, times: ReadTimes) -> Pending:
    with state.clock.phase("prefill"):
        with state.transfer.together():
            change = stage_changes(plan, state.tables, state.transfer)
            staged = stage_prefill(state, plan)
        change()
        result = prefill(state, plan, staged, taps=False)
        publish(state, staged, result)
        return send(plain_answer(result), state.transfer, plan, times)

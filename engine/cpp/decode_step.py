"""A plain step in one call (decode.cpp): around a small model's pass, operators of Python and torch cost a third of its
time.
"""

import ctypes

from contracts.step import StepPlan
from engine import decode_step as twins
from engine.batch import stage_changes
from engine.clock import ReadTimes
from engine.cpp.library import library
from engine.cpp.step import step_of, told
from engine.results import Pending
from engine.state import DeviceState


def decode_step(state: DeviceState, plan: StepPlan, times: ReadTimes) -> Pending:
    step = step_of(state, plan, plan.rows.size)
    if step is None:
        return twins.decode_step.twin(state, plan, times)
    answer = told(plan, 1, times)
    with state.clock.phase("verify"):
        stage_changes(plan, state.tables, state.transfer)()
        library().decoded(answer.words, ctypes.byref(step))
    return answer

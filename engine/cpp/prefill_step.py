"""A step of prompt chunks in one call (prefill.cpp)."""

import ctypes
from ctypes import c_char_p, c_int64, c_long, c_void_p

from contracts.step import StepPlan
from engine import prefill_step as twins
from engine.batch import stage_changes
from engine.clock import ReadTimes
from engine.cpp.library import library
from engine.cpp.step import Step, Told, step_of, told
from engine.results import Pending
from engine.state import DeviceState


class Prompts(ctypes.Structure):
    _fields_ = (
        *((name, c_char_p) for name in ("tokens", "starts", "counts", "next", "last")),
        ("tapped", c_void_p),
        ("boundaries", c_long),
    )


def prefill_step(state: DeviceState, plan: StepPlan, times: ReadTimes) -> Pending:
    step = prompt_step(state, plan)
    return twins.prefill_step.twin(state, plan, times) if step is None else pass_prompts(state, plan, times, step)[0]


def prompt_step(state: DeviceState, plan: StepPlan) -> Step | None:
    """None where the call cannot be made."""
    assert plan.prefill is not None
    return step_of(state, plan, plan.prefill.token_ids.size)


def pass_prompts(
    state: DeviceState,
    plan: StepPlan,
    times: ReadTimes,
    step: Step,
    taps: "ctypes.Array[c_int64] | None" = None,
) -> tuple[Told, Prompts]:
    """Runs the chunks; what enters the layers `taps` is kept for the head."""
    work = plan.prefill
    assert work is not None
    prompts = Prompts(
        work.token_ids.tobytes(),
        work.starts.tobytes(),
        work.counts.tobytes(),
        work.next_ids.tobytes(),
        work.is_last.tobytes(),
        None if taps is None else ctypes.addressof(taps),
        0 if taps is None else len(taps),
    )
    answer = told(plan, 1, times)
    with state.clock.phase("prefill"):
        stage_changes(plan, state.tables, state.transfer)()
        library().prefilled(answer.words, ctypes.byref(step), ctypes.byref(prompts))
    return answer, prompts

"""Prompts that the head follows, in two calls (engine/cpp/prefill.cpp)."""

import ctypes

from contracts.step import StepPlan
from engine.clock import ReadTimes
from engine.cpp.library import library
from engine.cpp.prefill_step import pass_prompts, prompt_step
from engine.state import DeviceState
from spec import follow_step as twins
from spec.cpp.head import held_head
from spec.draft_step import Sent
from spec.head import Head


def follow_step(state: DeviceState, head: Head, plan: StepPlan, times: ReadTimes, sent: Sent) -> None:
    held = held_head(head)
    fits = held is not None and plan.prefill is not None and plan.prefill.token_ids.size <= held.body.most
    step = prompt_step(state, plan) if fits else None
    if held is None or step is None:
        twins.follow_step.twin(state, head, plan, times, sent)
        return
    answer, prompts = pass_prompts(state, plan, times, step, held.taps)
    sent(answer)
    with state.clock.phase("extend"):
        library().prompts_followed(
            ctypes.byref(step), ctypes.byref(prompts), ctypes.byref(held.struct), plan.drafting.tobytes()
        )

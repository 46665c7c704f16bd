"""A plan as kernels of whole steps read it (step.h), whether they can run it, and what they answer.

Between two steps of a small model little of Python is still in the CPU's cache, and what is not costs ten times what it
does in a loop: so few libraries are touched here, and few lines.
"""

import ctypes
from ctypes import c_bool, c_char_p, c_float, c_int32, c_long, c_void_p
from dataclasses import dataclass

import numpy as np

from contracts.sampling import GREEDY_BELOW
from contracts.step import Ending, StepOutput, StepPlan
from engine.clock import ReadTimes
from engine.cpp.model import Held, futures_of, held_of, tables_of
from engine.decoder import Decoder
from engine.state import DeviceState


class Step(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("target", "tables", "futures")),
        *((name, c_char_p) for name in ("rows", "turns")),
        *((name, c_long) for name in ("count", "open", "stop", "full")),
        ("greedy_below", c_float),
        *((name, c_bool) for name in ("samples", "filters", "bans")),
    )


def step_of(state: DeviceState, plan: StepPlan, tokens: int) -> Step | None:
    """Of a decode that passes at most so many tokens; None where one of its rows calls for more than the kernels do."""
    held, needs = target_of(state), state.needs.of(plan.rows)
    asks_more = plan.logprobs >= 0 or plan.trees or state.futures.poison
    if held is None or asks_more or tokens > held.most or not state.visible:
        return None
    return Step(
        ctypes.addressof(held.model),
        ctypes.addressof(tables_of(state.tables)),
        ctypes.addressof(futures_of(state.futures)),
        plan.rows.tobytes(),
        plan.turns.tobytes(),
        plan.rows.size,
        Ending.OPEN,
        Ending.STOP_ID,
        Ending.LENGTH,
        GREEDY_BELOW,
        needs.noise,
        needs.filters,
        needs.bans,
    )


def target_of(state: DeviceState) -> Held | None:
    """None of a target that is not native, and of one that the kernels cannot walk through."""
    return held_of(state.target.body) if isinstance(state.target, Decoder) else None


@dataclass(frozen=True, slots=True)
class Told:
    """An answer that is on the host already: the words of step.h."""

    plan: StepPlan
    words: "ctypes.Array[c_int32]"
    times: ReadTimes

    def output(self) -> StepOutput:
        rows, words = self.plan.rows.size, np.frombuffer(memoryview(self.words), np.int32)
        first = len(self.words) - 5 * rows
        kept, lengths, endings, accepted, drafted = words[first:].reshape(5, rows)
        times = self.times()
        return StepOutput(
            number=self.plan.number,
            token_ids=words[:first].reshape(rows, -1),
            counts=kept,
            accepted=accepted,
            drafted=drafted,
            lengths=lengths,
            endings=endings,
            phase_seconds=times.phases,
            busy_seconds=times.busy,
            began=times.began,
            ended=times.ended,
        )


def told(plan: StepPlan, width: int, times: ReadTimes) -> Told:
    """With room for `width` tokens of each row."""
    return Told(plan, (c_int32 * (plan.rows.size * (width + 5)))(), times)

"""A plan as kernels of whole steps read it (src/step.h), whether they can run it, and what they answer.

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
from engine.state import DeviceState
from native.model import NativeBody, native_futures, native_tables


class Step(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("target", "tables", "futures")),
        *((name, c_char_p) for name in ("rows", "turns")),
        *((name, c_long) for name in ("count", "open", "stop", "full")),
        ("greedy_below", c_float),
        *((name, c_bool) for name in ("samples", "filters", "bans")),
    )


class Plans:
    """Makes steps of plans for one worker."""

    def __init__(self, state: DeviceState, target: NativeBody) -> None:
        self.most = target.most
        """Tokens that a step passes at most."""
        self._state = state
        self._read = target, native_tables(state.tables), native_futures(state.futures)
        self._addresses = tuple(map(ctypes.addressof, (target.model, *self._read[1:])))

    def step_of(self, plan: StepPlan, tokens: int) -> Step | None:
        """Of a plan that passes at most so many tokens; None where it asks for more than the kernels do. What the
        plan's rows need must have been noted.
        """
        state = self._state
        if plan.logprobs >= 0 or plan.trees or tokens > self.most:
            return None
        needs = state.needs.of(plan.rows)
        return Step(
            *self._addresses,
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


@dataclass(frozen=True, slots=True)
class Answer:
    """What a step committed, on the host already: the words of src/step.h."""

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


def answer_of(plan: StepPlan, width: int, times: ReadTimes) -> Answer:
    """With room for `width` tokens of each row."""
    return Answer(plan, (c_int32 * (plan.rows.size * (width + 5)))(), times)

"""A plan as kernels of whole steps read it (src/step.h), whether they can run it, and their answer.

Between two steps of a small model, the CPU's cache keeps little of Python, and uncached code takes ten times as long as
in a loop. So this file uses few libraries and few lines.
"""

import ctypes
from ctypes import c_bool, c_char_p, c_float, c_int32, c_long, c_void_p
from dataclasses import dataclass

import numpy as np

from aerie.contracts.sampling import GREEDY_BELOW
from aerie.contracts.step import Ending, StepOutput, StepPlan
from aerie.engine.step.clock import Times
from aerie.engine.step.state import DeviceState
from aerie.native.structs.columns import needs_beyond
from aerie.native.structs.hold import Hold
from aerie.native.structs.model import NativeBody, native_futures, native_tables


class Step(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("target", "tables", "futures", "hold", "board")),
        *((name, c_char_p) for name in ("rows", "turns")),
        *((name, c_long) for name in ("count", "open", "stop", "full")),
        ("greedy_below", c_float),
        *((name, c_bool) for name in ("samples", "filters", "bans", "edits")),
    )


class Plans:
    """Makes one worker's steps from plans."""

    def __init__(self, state: DeviceState, target: NativeBody) -> None:
        self.most = target.most
        """The most tokens that a step passes."""
        self._state = state
        self._read = target, native_tables(state.tables), native_futures(state.futures)
        self._beyond = needs_beyond()
        self._addresses = tuple(map(ctypes.addressof, (target.model, *self._read[1:])))

    def step_of(self, plan: StepPlan, tokens: int, hold: Hold) -> Step | None:
        """The step of a plan that passes at most `tokens` tokens; None if it needs more than the kernels support. The
        needs of the plan's rows must have been noted. `hold` may hold choices to grammars, once `Step.hold` says so.
        """
        state = self._state
        if plan.logprobs >= 0 or plan.trees or tokens > self.most:
            return None
        needs = state.needs.of(plan.rows)
        if self._beyond and any(getattr(needs, flag) for flag in self._beyond):
            return None
        return Step(
            *self._addresses,
            None,
            hold.board.address,
            plan.rows.tobytes(),
            plan.generations.tobytes(),
            plan.rows.size,
            Ending.OPEN,
            Ending.STOP_ID,
            Ending.LENGTH,
            GREEDY_BELOW,
            needs.noise,
            needs.filters,
            needs.bans,
            needs.edits,
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What a step commits, on the host: the words of src/step.h."""

    plan: StepPlan
    words: "ctypes.Array[c_int32]"

    def output(self, times: Times) -> StepOutput:
        rows, words = self.plan.rows.size, np.frombuffer(memoryview(self.words), np.int32)
        first = len(self.words) - 5 * rows
        kept, lengths, endings, accepted, drafted = words[first:].reshape(5, rows)  # [rows] each
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


def answer_of(plan: StepPlan, width: int) -> Answer:
    """An answer with room for `width` tokens per row."""
    return Answer(plan, (c_int32 * (plan.rows.size * (width + 5)))())

"""The worker of a CPU: each step in one C++ call, or in one per phase of a speculative round, if the kernels support
the step; its fallback runs every other step.

Around the passes of a small model, operators of Python and torch take a third of the time. What a step commits and
leaves behind equals the fallback's result bit for bit.
"""

import ctypes

import torch

from aerie.contracts.step import Capacity, StepOutput, StepPlan
from aerie.contracts.worker import Answering
from aerie.engine.grammars.guides import Guides
from aerie.engine.model.decoder import Decoder
from aerie.engine.step.batch import stage_changes
from aerie.engine.step.plain_worker import PlainWorker
from aerie.native.layouts import check_columns, check_layouts
from aerie.native.library import library
from aerie.native.structs.draft import drafts_of, drafts_plainly, drafts_with, fits
from aerie.native.structs.head import native_head
from aerie.native.structs.hold import Hold
from aerie.native.structs.model import NativeBody, native_body
from aerie.native.structs.plan import Plans, Step, answer_of
from aerie.native.structs.prompts import prompts_of
from aerie.native.structs.tails import tails_of
from aerie.spec.round.tails import Tails
from aerie.spec.worker import SpecWorker, drafts


class NativeWorker:
    """Implements contracts.worker.Worker on the state of its fallback, which may run any step in between."""

    def __init__(self, fallback: PlainWorker | SpecWorker, target: NativeBody) -> None:
        self.fallback = fallback
        self._state = fallback.state
        self.plans = Plans(fallback.state, target)
        self._head = native_head(fallback.drafter) if isinstance(fallback, SpecWorker) else None
        self._hold = Hold(fallback.state.guides, self.capacity.rows, self.capacity.vocabulary)
        self._drafts = isinstance(fallback, SpecWorker) and drafts_with(fallback.drafter)

    @property
    def capacity(self) -> Capacity:
        return self._state.capacity

    @property
    def guides(self) -> Guides | None:
        return self._state.guides

    @torch.inference_mode()
    def step(self, plan: StepPlan, answer: Answering) -> None:
        """Answers before it extends the drafter."""
        self._hold.needed = self._state.begin(plan)

        def answer_held(output: StepOutput) -> None:
            self._hold.check()
            self._state.answer(output, answer)

        if plan.prefill is not None:
            ran = self._read_prompts(plan, answer_held)
        elif drafts(plan):
            ran = self._draft(plan, answer_held)
        else:
            ran = not any(plan.drafting) and self._decode(plan, answer_held)
        if not ran:
            self.fallback.step(plan, answer)

    def _step_of(self, plan: StepPlan, tokens: int) -> Step | None:
        return self.plans.step_of(plan, tokens, self._hold)

    def close(self) -> None:
        self.fallback.close()

    def _decode(self, plan: StepPlan, answer: Answering) -> bool:
        """Like the two methods below, returns False and changes nothing if the kernels do not support the step."""
        step, tails = self._step_of(plan, plan.rows.size), None
        if step is None:
            return False
        if plan.resting is not None:
            if self._head is None or not isinstance(self.fallback, SpecWorker) or self.fallback.tails is None:
                return False
            self._begin_tails(self.fallback.tails, plan)
            tails = ctypes.byref(tails_of(self.fallback.tails, self._head, plan.resting))
        state = self._state
        state.transfer.begin()
        committed = answer_of(plan, 1, state.clock.start())
        with state.clock.phase("verify"):
            stage_changes(plan, state.tables, state.transfer)()
            library().decoded(committed.words, ctypes.byref(step), tails)
        state.clock.stop()
        answer(committed.output())
        return True

    def _begin_tails(self, tails: Tails, plan: StepPlan) -> None:
        """Of rows that rest from this step on."""
        if plan.fresh is None or not plan.fresh.any():
            return
        rows, generations = (torch.from_numpy(values).long() for values in (plan.rows, plan.generations))
        tails.begin(rows, self._state.futures.lengths[generations, rows], torch.from_numpy(plan.fresh))

    def _read_prompts(self, plan: StepPlan, answer: Answering) -> bool:
        work, head, extends = plan.prefill, self._head, any(plan.drafting)
        assert work is not None
        if extends and (head is None or work.token_ids.size > head.body.most):
            return False
        step = self._step_of(plan, work.token_ids.size)
        if step is None:
            return False
        state, kernels = self._state, library()
        state.transfer.begin()
        committed = answer_of(plan, 1, state.clock.start())
        prompts = prompts_of(work, head.taps if head is not None and extends else None)
        with state.clock.phase("prefill"):
            stage_changes(plan, state.tables, state.transfer)()
            kernels.prefilled(committed.words, ctypes.byref(step), ctypes.byref(prompts))
        if head is None or not extends:
            state.clock.stop()
            answer(committed.output())
            return True
        answer(committed.output())
        with state.clock.phase("extend"):
            kernels.prompts_extended(
                ctypes.byref(step), ctypes.byref(prompts), ctypes.byref(head.struct), plan.drafting.tobytes()
            )
        state.clock.stop()
        return True

    def _draft(self, plan: StepPlan, answer: Answering) -> bool:
        work, head, worker = plan.decode, self._head, self.fallback
        assert work is not None and isinstance(worker, SpecWorker)
        if head is None or not self._drafts or not fits(head, plan, work):
            return False
        step = self._step_of(plan, int(sum(work.nodes)))
        if step is None or not drafts_plainly(worker.spec, step, trees=work.topk > 1):
            return False
        state, kernels, phase = self._state, library(), self._state.clock.phase
        state.transfer.begin()
        committed = answer_of(plan, work.depth + 1, state.clock.start())
        worker.stage_catch_up(plan)()
        forced = self._state.forced(work)
        given = ctypes.byref(step), ctypes.byref(drafts_of(head, worker.spec, plan, work, forced))
        with phase("draft"):
            stage_changes(plan, state.tables, state.transfer)()
            kernels.round_drafted(committed.words, *given)
        with phase("verify"):
            kernels.round_verified(*given)
        with phase("accept"):
            kernels.round_accepted(committed.words, *given)
        answer(committed.output())
        with phase("extend"):
            kernels.round_extended(*given)
        state.clock.stop()
        return True


def native_worker(fallback: PlainWorker | SpecWorker) -> NativeWorker | None:
    """None if the kernels cannot run the target, or if rows must agree among several ranks."""
    state = fallback.state
    if not isinstance(state.target, Decoder) or not state.visible or state.futures.poison:
        return None
    check_layouts()
    check_columns()
    target = native_body(state.target.body)
    return None if target is None else NativeWorker(fallback, target)

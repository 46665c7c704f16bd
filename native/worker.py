"""The worker of a CPU: each step in one C++ call, or in one per phase of a speculative round, if the kernels support
the step; its fallback runs every other step.

Around the passes of a small model, operators of Python and torch take a third of the time. So a step is *staged* beside
the one before, and between two steps only those lines run that need what the first of them has left. What a step
commits and leaves behind equals the fallback's result bit for bit.
"""

import ctypes
from collections.abc import Callable
from functools import partial

import torch

from aerie.contracts.step import Capacity, DecodeWork, PrefillWork, StepPlan
from aerie.contracts.worker import Answering, Run, Telling
from aerie.engine.grammars.guides import Guides
from aerie.engine.model.decoder import Decoder
from aerie.engine.step.batch import stage_changes
from aerie.engine.step.clock import ReadTimes
from aerie.engine.step.plain_worker import PlainWorker
from aerie.native.layouts import check_columns, check_layouts
from aerie.native.library import library
from aerie.native.structs.draft import drafts_of, drafts_plainly, drafts_with, fits
from aerie.native.structs.head import native_head
from aerie.native.structs.hold import Hold
from aerie.native.structs.model import NativeBody, native_body
from aerie.native.structs.plan import Answer, Plans, Step, answer_of
from aerie.native.structs.prompts import prompts_of
from aerie.native.structs.tails import tails_of
from aerie.spec.round.tails import Tails
from aerie.spec.worker import SpecWorker, drafts


class NativeWorker:
    """Implements contracts.worker.StagingWorker on the state of its fallback, which may run any step in between."""

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

    def step(self, plan: StepPlan, answer: Answering) -> None:
        """Answers before it extends the drafter."""
        self.stage(plan)(lambda read: answer(read()))

    @torch.inference_mode()
    def stage(self, plan: StepPlan) -> Run:
        """A row may get a new owner in the step after this one, and its needs be noted before this step has run: what
        the row commits in it is void.
        """
        self._state.needs.note(plan)
        if plan.prefill is not None:
            run = self._read_prompts(plan, plan.prefill)
        elif plan.decode is not None and drafts(plan):
            run = self._draft(plan, plan.decode)
        else:
            run = None if any(plan.drafting) else self._decode(plan)
        return run or partial(self._fall_back, plan)

    def close(self) -> None:
        self.fallback.close()

    def _fall_back(self, plan: StepPlan, answer: Telling) -> None:
        self.fallback.run(plan, lambda output: answer(lambda: output))

    def _decode(self, plan: StepPlan) -> Run | None:
        """Like the two methods below, returns None if the kernels do not support the step."""
        step, tails = self._step_of(plan, plan.rows.size), None
        if step is None:
            return None
        changes = self._changes(plan)
        if plan.resting is not None:
            if self._head is None or not isinstance(self.fallback, SpecWorker) or self.fallback.tails is None:
                return None
            tails = ctypes.byref(tails_of(self.fallback.tails, self._head, plan.resting))
            changes += self._begun_tails(self.fallback.tails, plan)
        committed, decoded, clock = answer_of(plan, 1), library().decoded, self._state.clock
        verify, given = clock.phase("verify"), (committed.words, ctypes.byref(step), tails)

        def run(answer: Telling) -> None:
            times = self._begin(plan, step)
            with verify:
                _make(changes)
                decoded(*given)
            self._answer(committed, times, answer)

        return run

    def _read_prompts(self, plan: StepPlan, work: PrefillWork) -> Run | None:
        head, extends = self._head, any(plan.drafting)
        if extends and (head is None or work.token_ids.size > head.body.most):
            return None
        step = self._step_of(plan, work.token_ids.size)
        if step is None:
            return None
        committed, kernels, clock = answer_of(plan, 1), library(), self._state.clock
        prompts = prompts_of(work, head.taps if head is not None and extends else None)
        changes, given = self._changes(plan), (ctypes.byref(step), ctypes.byref(prompts))

        def run(answer: Telling) -> None:
            times = self._begin(plan, step)
            with clock.phase("prefill"):
                _make(changes)
                kernels.prefilled(committed.words, *given)
            self._answer(committed, times, answer)
            if head is not None and extends:
                with clock.phase("extend"):
                    kernels.prompts_extended(*given, ctypes.byref(head.struct), plan.drafting.tobytes())
                clock.stop()

        return run

    def _draft(self, plan: StepPlan, work: DecodeWork) -> Run | None:
        head, worker = self._head, self.fallback
        assert isinstance(worker, SpecWorker)
        if head is None or not self._drafts or not fits(head, plan, work):
            return None
        step = self._step_of(plan, int(sum(work.nodes)))
        if step is None or not drafts_plainly(worker.spec, step, trees=work.topk > 1):
            return None
        committed, kernels, phase = answer_of(plan, work.depth + 1), library(), self._state.clock.phase
        drafts = drafts_of(head, worker.spec, plan, work)
        changes = self._changes(plan)
        if plan.behind is not None:
            changes.append(worker.stage_catch_up(plan))
        given = ctypes.byref(step), ctypes.byref(drafts)

        def run(answer: Telling) -> None:
            times = self._begin(plan, step)
            forced = self._state.forced(work)
            if forced is not None:
                drafts.force(forced)
            with phase("draft"):
                _make(changes)
                kernels.round_drafted(committed.words, *given)
            with phase("verify"):
                kernels.round_verified(*given)
            with phase("accept"):
                kernels.round_accepted(committed.words, *given)
            self._answer(committed, times, answer)
            with phase("extend"):
                kernels.round_extended(*given)
            self._state.clock.stop()

        return run

    def _step_of(self, plan: StepPlan, tokens: int) -> Step | None:
        return self.plans.step_of(plan, tokens, self._hold)

    def _changes(self, plan: StepPlan) -> list[Callable[[], None]]:
        """What the step changes before its first pass."""
        if plan.starts is None and plan.page_updates is None:
            return []
        return [stage_changes(plan, self._state.tables, self._state.transfer)]

    def _begun_tails(self, tails: Tails, plan: StepPlan) -> list[Callable[[], None]]:
        """Begins the tails of rows that rest from this step on."""
        if plan.fresh is None or not plan.fresh.any():
            return []
        rows, generations = (torch.from_numpy(values).long() for values in (plan.rows, plan.generations))
        fresh, lengths = torch.from_numpy(plan.fresh), self._state.futures.lengths
        return [lambda: tails.begin(rows, lengths[generations, rows], fresh)]

    def _begin(self, plan: StepPlan, step: Step) -> ReadTimes:
        self._hold.needed = self._state.begin(plan)
        step.hold = self._hold.address
        return self._state.clock.start()

    def _answer(self, committed: Answer, times: ReadTimes, answer: Telling) -> None:
        self._hold.check()
        self._state.answer(partial(committed.output, times()), answer)


def native_worker(fallback: PlainWorker | SpecWorker) -> NativeWorker | None:
    """None if the kernels cannot run the target, or if rows must agree among several ranks."""
    state = fallback.state
    if not isinstance(state.target, Decoder) or not state.visible or state.futures.poison:
        return None
    check_layouts()
    check_columns()
    target = native_body(state.target.body)
    return None if target is None else NativeWorker(fallback, target)


def _make(changes: list[Callable[[], None]]) -> None:
    if changes:
        with torch.inference_mode():
            for change in changes:
                change()

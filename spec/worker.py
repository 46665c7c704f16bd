"""The speculative worker: draft -> verify -> accept -> compact -> extend, in one device round for a batch.

Implements contracts.step.Worker on the plain worker's tables, passes and choice, so a row commits the same tokens on
either. A step in which nothing is drafted *is* the plain worker's pass, followed by an extend of the rows that the head
follows.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from contracts.spec_section import SpecConfig
from contracts.step import Capacity, StepKind, StepOutput, StepPlan
from engine.batch import stage_changes
from engine.clock import ReadTimes
from engine.cuda import Runtime
from engine.decode_step import decode_step
from engine.passes import plain_pass, publish, stage_decode, stage_prefill
from engine.plain_graphs import PlainGraphs
from engine.resting import rested
from engine.results import Answer, Pending, plain_answer, send
from engine.state import DeviceState
from spec.draft_step import Sent, draft_step
from spec.extend import extend_pass, stage_following
from spec.graphs import RoundGraphs
from spec.head import Head


class SpecWorker:
    """A target and its head.

    The head follows the rows that a plan marks as drafting; the others cost what plain ones do.
    """

    def __init__(
        self,
        state: DeviceState,
        head: Head,
        spec: SpecConfig,
        *,
        rounds: RoundGraphs | None = None,
        plain: PlainGraphs | None = None,
    ) -> None:
        """Steps that neither `rounds` nor `plain` recorded are launched one call after the other."""
        self._state = state
        self._head = head
        self._spec = spec
        self._rounds = rounds
        self._plain_graphs = plain

    @property
    def capacity(self) -> Capacity:
        return self._state.capacity

    @property
    def runtime(self) -> Runtime | None:
        """The GPU's; None on a CPU."""
        return self._state.runtime

    def step(self, plan: StepPlan, answer: Callable[[StepOutput], None]) -> None:
        """Answers before the head is extended."""
        self._run(plan, lambda pending: answer(pending.output()))

    def launch(self, plan: StepPlan) -> Pending:
        """Launches a step's work; waits for nothing on a device that works by itself."""
        sent: list[Pending] = []
        self._run(plan, sent.append)
        return sent[0]

    @torch.inference_mode()
    def _run(self, plan: StepPlan, sent: Sent) -> None:
        self._state.needs.note(plan)
        self._state.transfer.begin()
        times = self._state.clock.start()
        if _drafts(plan):
            self._round(plan, times, sent)
        else:
            self._plain(plan, times, sent)
        self._state.clock.stop()

    def close(self) -> None:
        """Nothing to give back: the process's end does."""

    def _round(self, plan: StepPlan, times: ReadTimes, sent: Sent) -> None:
        bucket = None if self._rounds is None else self._rounds.bucket(plan)
        if self._rounds is None or bucket is None:
            draft_step(self._state, self._head, self._spec, plan, times, sent)
            return
        state, rounds, phase = self._state, self._rounds, self._state.clock.phase
        with phase("draft"):
            with state.transfer.together():
                renew = rounds.stage(bucket, plan)
                change = stage_changes(plan, state.tables, state.transfer)
            change()
            renew()
            rounds.draft(bucket)
        with phase("verify"):
            answer, words = rounds.verify(bucket)
            pending = self._send(plan, answer, times, words)
        sent(pending)
        with phase("extend"):
            rounds.extend(bucket)

    def _plain(self, plan: StepPlan, times: ReadTimes, sent: Sent) -> None:
        bucket = None if self._plain_graphs is None else self._plain_graphs.bucket(plan)
        if self._plain_graphs is not None and bucket is not None:
            sent(self._plain_graphs.launch(bucket, plan, times))
            return
        following = any(plan.drafting)
        if plan.prefill is None and not following:
            sent(decode_step(self._state, plan, times))
            return
        resting = rested(self._state, plan, times)
        if resting is not None:
            sent(resting)
            return
        state, phase = self._state, self._state.clock.phase
        with phase("prefill" if plan.kind == StepKind.PREFILL else "verify"):
            with state.transfer.together():
                change = stage_changes(plan, state.tables, state.transfer)
                staged = stage_prefill(state, plan) if plan.decode is None else stage_decode(state, plan)
                pairs = stage_following(plan, state.tables.page_size, state.transfer) if following else None
            change()
            result = plain_pass(state, plan, staged, taps=following)
            pending = self._send(plan, plain_answer(result), times)
        sent(pending)
        seeds = None
        if pairs is not None:
            with phase("extend"):
                seeds = extend_pass(self._head, state.tables, result, pairs)
        publish(state, staged, result, seeds)

    def _send(self, plan: StepPlan, answer: Answer, times: ReadTimes, words: Tensor | None = None) -> Pending:
        """On its way before the head is extended, so that the scheduler need not wait for that."""
        return send(answer, self._state.transfer, plan, times, words)


def _drafts(plan: StepPlan) -> bool:
    work = plan.decode
    if work is None or work.depth == 0:
        return False
    return any(
        followed and nodes > 1 for followed, nodes in zip(plan.drafting, work.nodes, strict=True)
    )

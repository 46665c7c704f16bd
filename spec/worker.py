"""The speculative worker: draft -> verify -> accept -> compact -> extend, in one device round for a batch.

Implements contracts.step.Worker on the plain worker's tables, passes and choice, so a row commits the same tokens on
either. A step in which nothing is drafted *is* the plain worker's pass, followed by an extend of the rows that the head
follows.
"""

import torch
from torch import Tensor

from contracts.config import SpecConfig
from contracts.step import Capacity, StepKind, StepOutput, StepPlan
from engine.batch import stage_changes
from engine.clock import ReadTimes
from engine.passes import plain_pass, publish, stage_decode, stage_prefill
from engine.results import Answer, Pending, plain_answer, send
from engine.state import DeviceState
from spec.extend import extend_pass, stage_following
from spec.head import Head
from spec.round import Opening, Outcome, commit, follow, open_round, propose
from spec.stage import stage_round
from spec.tree import Tree
from spec.verify import verify


class SpecWorker:
    """A target and its head.

    The head follows the rows that a plan marks as drafting; the others cost what plain ones do.
    """

    def __init__(self, state: DeviceState, head: Head, spec: SpecConfig) -> None:
        self._state = state
        self._head = head
        self._sharpness = spec.draft_temperature
        self._edge_temperatures = spec.edge_temperatures
        self._simulated = spec.simulate_acceptance

    @property
    def capacity(self) -> Capacity:
        return self._state.capacity

    def step(self, plan: StepPlan) -> StepOutput:
        return self.launch(plan).output()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Pending:
        """Launches a step's work; waits for nothing on a device that works by itself."""
        self._state.transfer.begin()
        times = self._state.clock.start()
        pending = self._speculate(plan, times) if _drafts(plan) else self._plain(plan, times)
        self._state.clock.stop()
        return pending

    def close(self) -> None:
        """Nothing to give back: the process's end does."""

    def _speculate(self, plan: StepPlan, times: ReadTimes) -> Pending:
        state, head, phase = self._state, self._head, self._state.clock.phase
        with phase("draft"):
            with state.transfer.together():
                change = stage_changes(plan, state.tables, state.needs, state.transfer)
                staged = stage_round(state, plan, head.config)
            change()
            opening = open_round(state, staged)
            tree, noise = propose(
                state, head, opening, sharpness=self._sharpness, edge_temperatures=self._edge_temperatures
            )
        with phase("verify"):
            verified = verify(state, opening.roots, tree, staged.nodes, staged.needs, noise=noise, taps=True)
        with phase("accept"):
            outcome = commit(state, opening, tree, verified, plan.logprobs, simulated=self._simulated)
            answer = drafted_answer(opening, outcome, tree if plan.trees else None)
            pending = self._send(plan, answer, times)
        with phase("extend"):
            publish_round(state, opening, outcome, follow(state, head, opening, verified, outcome))
        return pending

    def _plain(self, plan: StepPlan, times: ReadTimes) -> Pending:
        state, phase = self._state, self._state.clock.phase
        following = bool(plan.drafting.any())
        with phase("prefill" if plan.kind == StepKind.PREFILL else "verify"):
            with state.transfer.together():
                change = stage_changes(plan, state.tables, state.needs, state.transfer)
                staged = stage_prefill(state, plan) if plan.decode is None else stage_decode(state, plan)
                pairs = stage_following(plan, state.tables.page_size, state.transfer) if following else None
            change()
            result = plain_pass(state, plan, staged, taps=following)
            pending = self._send(plan, plain_answer(result), times)
        seeds = None
        if pairs is not None:
            with phase("extend"):
                seeds = extend_pass(self._head, state.tables, result, pairs)
        publish(state, staged, result, seeds)
        return pending

    def _send(self, plan: StepPlan, answer: Answer, times: ReadTimes) -> Pending:
        """On its way before the head is extended, so that the scheduler need not wait for that."""
        width = 1 if plan.decode is None else plan.decode.depth + 1
        rows = plan.rows.size
        return send(answer, self._state.transfer, number=plan.number, rows=rows, width=width, times=times)


def publish_round(state: DeviceState, opening: Opening, outcome: Outcome, seeds: Tensor) -> None:
    """Writes the other generation of every row."""
    lasts = (outcome.committed.counts - 1).clamp(min=0)
    state.futures.publish(
        1 - opening.staged.turns,
        opening.staged.rows,
        bonus=outcome.accepted.tokens.gather(1, lasts[:, None]).squeeze(1),
        lengths=outcome.lengths,
        done=opening.done | outcome.committed.done,
        seeds=seeds,
    )


def drafted_answer(opening: Opening, outcome: Outcome, tree: Tree | None) -> Answer:
    """`tree` is shown where it is given."""
    trees = None
    if tree is not None:
        trees = tree.tokens, (tree.depths - 1).clamp(min=0) if tree.parents is None else tree.parents
    return Answer(
        tokens=outcome.accepted.tokens,
        counts=outcome.committed.counts,
        lengths=outcome.lengths,
        endings=outcome.committed.endings,
        accepted=outcome.accepted.counts,
        drafted=torch.where(opening.done, 0, opening.staged.counts - 1),
        ranked=outcome.ranked,
        trees=trees,
    )


def _drafts(plan: StepPlan) -> bool:
    work = plan.decode
    return work is not None and work.depth > 0 and bool((work.nodes[plan.drafting] > 1).any())

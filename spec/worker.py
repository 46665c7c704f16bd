"""The speculative worker: draft -> verify -> accept -> compact -> extend, in one device round for a batch.

Implements contracts.step.Worker on the plain worker's tables, passes and choice, so a row commits the same tokens on
either. A step in which nothing is drafted *is* the plain worker's pass, followed by an extend of the rows that the head
follows.
"""

import numpy as np
import torch
from torch import Tensor

from contracts.config import SpecConfig
from contracts.step import Capacity, DraftedTrees, Ints, Logprobs, StepKind, StepOutput, StepPlan
from engine.batch import apply_changes
from engine.clock import StepClock
from engine.passes import decode, prefill, publish
from engine.results import host, host_logprobs, plain_output
from engine.state import DeviceState
from spec.extend import extend_pass
from spec.head import Head
from spec.round import Opening, Outcome, commit, follow, open_round, propose
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
        self._clock = StepClock(torch.get_num_threads())

    @property
    def capacity(self) -> Capacity:
        return self._state.capacity

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> StepOutput:
        self._clock.start()
        apply_changes(plan, self._state.tables, self._state.needs)
        if _drafts(plan):
            return self._clock.stamp(self._speculate(plan))
        return self._clock.stamp(self._plain(plan))

    def close(self) -> None:
        """Nothing to give back: the process's end does."""

    def _speculate(self, plan: StepPlan) -> StepOutput:
        state, head, clock = self._state, self._head, self._clock
        with clock.phase("draft"):
            opening = open_round(state, plan, head.config)
            tree, noise = propose(
                state, head, opening, sharpness=self._sharpness, edge_temperatures=self._edge_temperatures
            )
        with clock.phase("verify"):
            verified = verify(state, opening.roots, tree, opening.nodes, opening.needs, noise=noise, taps=True)
        with clock.phase("accept"):
            outcome = commit(state, opening, tree, verified, plan.logprobs, simulated=self._simulated)
            output = _output(plan, opening, outcome, _trees(tree) if plan.trees else None)
        with clock.phase("extend"):
            seeds = follow(state, head, opening, verified, outcome)
            self._publish(opening, outcome, seeds)
        return output

    def _publish(self, opening: Opening, outcome: Outcome, seeds: Tensor) -> None:
        lasts = (outcome.committed.counts - 1).clamp(min=0)
        self._state.futures.publish(
            1 - opening.turns,
            opening.rows,
            bonus=outcome.accepted.tokens.gather(1, lasts[:, None]).squeeze(1),
            lengths=outcome.lengths,
            done=opening.done | outcome.committed.done,
            seeds=seeds,
        )

    def _plain(self, plan: StepPlan) -> StepOutput:
        state, clock = self._state, self._clock
        filling, following = plan.kind == StepKind.PREFILL, bool(plan.drafting.any())
        with clock.phase("prefill" if filling else "verify"):
            result = (prefill if filling else decode)(state, plan, taps=following)
            output = plain_output(plan, result)
        seeds = None
        if following:
            with clock.phase("extend"):
                seeds = extend_pass(self._head, state.tables, plan, result)
        publish(state, plan, result, seeds)
        return output


def _drafts(plan: StepPlan) -> bool:
    work = plan.decode
    return work is not None and work.depth > 0 and bool((work.nodes[plan.drafting] > 1).any())


def _trees(tree: Tree) -> DraftedTrees:
    parents = (tree.depths - 1).clamp(min=0) if tree.parents is None else tree.parents
    return DraftedTrees(host(tree.tokens), host(parents))


def _output(plan: StepPlan, opening: Opening, outcome: Outcome, trees: DraftedTrees | None) -> StepOutput:
    """Copied to the host before the head is extended, so that the scheduler need not wait for that."""
    assert plan.decode is not None
    width = plan.decode.depth + 1
    counts = host(outcome.committed.counts)
    drafted: Ints = np.where(host(opening.done) == 1, 0, opening.nodes - 1).astype(np.int32)
    return StepOutput(
        number=plan.number,
        token_ids=_widened(host(outcome.accepted.tokens), width),
        counts=counts,
        accepted=np.minimum(host(outcome.accepted.counts), counts),
        drafted=drafted,
        lengths=host(outcome.lengths),
        endings=host(outcome.committed.endings),
        logprobs=None if outcome.ranked is None else _widened_logprobs(host_logprobs(outcome.ranked), width),
        trees=trees,
    )


def _widened(values: np.ndarray, width: int) -> np.ndarray:
    """[rows, w, ...] -> [rows, width, ...]: a round that drafts less than the plan's depth answers in its shape."""
    missing = width - values.shape[1]
    return values if missing <= 0 else np.pad(values, [(0, 0), (0, missing), *[(0, 0)] * (values.ndim - 2)])


def _widened_logprobs(logprobs: Logprobs, width: int) -> Logprobs:
    return Logprobs(
        _widened(logprobs.chosen, width),
        _widened(logprobs.rank_ids, width),
        _widened(logprobs.rank_logprobs, width),
    )

"""Rounds as CUDA graphs, in three families for each bucket: draft, verify with acceptance, extend.

The worker asks for a bucket, stages, and replays the families in order; `engine.graphs` defines buckets. Every row of a
bucket's pass has the same number of nodes: those past a row's count are computed and never accepted.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.spec_section import SpecConfig
from aerie.contracts.step import Ints, StepPlan
from aerie.engine.attention import Capturable
from aerie.engine.step.batch import cover, uniform_layout
from aerie.engine.step.graphs import (
    NEEDS,
    Family,
    FixedRows,
    Graphs,
    HeldPass,
    Sampling,
    bucket_for,
    fix_rows,
    padded_bounds,
    sampling_of,
)
from aerie.engine.step.results import Answer
from aerie.engine.step.state import DeviceState
from aerie.spec.heads.head import Head
from aerie.spec.round.round import Opening, commit, drafted_answer, follow, open_round, propose, publish_round
from aerie.spec.round.stage import Covers, Staged, reach
from aerie.spec.round.verify import Nodes, verify
from aerie.spec.trees.tree import usable_nodes


@dataclass(frozen=True, slots=True)
class RoundBucket:
    rows: int
    depth: int
    topk: int
    nodes: int
    """The same for every row."""
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class _Passes:
    """Attention for a bucket's rows and shape, shared by all its sampling kinds."""

    draft: HeldPass
    verify: HeldPass
    extend: HeldPass


class RoundGraphs:
    """Graphs of the shapes that `spec` can plan, for the row counts at which it plans them."""

    def __init__(
        self,
        state: DeviceState,
        head: Head,
        spec: SpecConfig,
        graphs: Graphs,
        attention: Capturable,
        sizes: list[int],
    ) -> None:
        self._state = state
        self._head = head
        self._spec = spec
        self._graphs = graphs
        self._attention = attention
        self._sizes = sizes
        self._passes: dict[tuple[int, int, int, int], _Passes] = {}
        self._answers: dict[RoundBucket, Answer] = {}
        self._read: dict[RoundBucket, Staged] = {}
        """Tensors that the recordings read and that must outlive them."""
        for rows, depth, topk, nodes in self._shapes(spec):
            for sampling in Sampling:
                self._capture(RoundBucket(rows, depth, topk, nodes, sampling))

    def bucket(self, plan: StepPlan) -> RoundBucket | None:
        """The bucket that replays a step, or None. Call it once the host has noted the step's row starts."""
        work = plan.decode
        if work is None or plan.logprobs >= 0 or plan.trees:
            return None
        rows, sampling = bucket_for(plan.rows.size, self._sizes), sampling_of(self._state.needs.of(plan.rows))
        if rows is None or sampling is None:
            return None
        topk = min(work.topk, self._head.config.draft_vocabulary)
        widest = int(usable_nodes(work.nodes, topk, work.depth).max())
        wanted = (rows, work.depth, topk, sampling)
        fitting = (b for b in self._answers if (b.rows, b.depth, b.topk, b.sampling) == wanted and b.nodes >= widest)
        return min(fitting, key=lambda bucket: bucket.nodes, default=None)

    def stage(self, bucket: RoundBucket, plan: StepPlan) -> Callable[[], None]:
        """Must be the step's first transfer. Call the returned function once the step's pages are in the tables."""
        assert plan.decode is not None
        state, passes = self._state, self._passes[_shape(bucket)]
        counts = np.where(plan.drafting, usable_nodes(plan.decode.nodes, bucket.topk, bucket.depth), 1)
        fixed = fix_rows(plan, bucket.rows, counts.astype(np.int32), state.tables.dummy_row, state.transfer)
        far = reach(bucket.nodes, bucket.depth, bucket.topk, self._head.config)
        positions: Ints = padded_bounds(plan.decode.bounds, bucket.rows) + far
        covered = cover(positions, state.tables.page_size, state.transfer)

        def renew() -> None:
            for held in (passes.draft, passes.verify, passes.extend):
                held.renew(fixed.rows, covered)

        return renew

    def draft(self, bucket: RoundBucket) -> None:
        self._graphs.replay(Family.DRAFT, bucket)

    def verify(self, bucket: RoundBucket) -> tuple[Answer, Tensor]:
        """Returns the answer and its words."""
        return self._answers[bucket], self._graphs.replay(Family.VERIFY, bucket)

    def extend(self, bucket: RoundBucket) -> None:
        self._graphs.replay(Family.EXTEND, bucket)

    def _shapes(self, spec: SpecConfig) -> list[tuple[int, int, int, int]]:
        """Rows, depth, topk and nodes of every bucket, the largest first."""
        found: set[tuple[int, int, int, int]] = set()
        before = 0
        for size in self._sizes:
            for rows in range(before + 1, size + 1):
                by_load = sorted(spec.by_load, key=lambda load: load.rows)
                shape = next((load for load in by_load if rows <= load.rows), None) if by_load else spec
                if shape is not None and shape.depth and shape.nodes > 1:
                    topk = min(shape.topk, self._head.config.draft_vocabulary)
                    nodes = int(usable_nodes(np.array([shape.nodes]), topk, shape.depth)[0])
                    found.add((size, min(shape.depth, nodes - 1), topk, nodes))
            before = size
        return sorted(found, reverse=True)

    @torch.inference_mode()
    def _capture(self, bucket: RoundBucket) -> None:
        state, head = self._state, self._head
        state.transfer.begin()
        fixed = fix_rows(None, bucket.rows, None, state.tables.dummy_row, state.transfer)
        shape = _shape(bucket)
        if shape not in self._passes:
            self._passes[shape] = self._hold(bucket)
        passes = self._passes[shape]
        staged = self._read[bucket] = _staged(bucket, fixed, passes, state.device)
        made: dict[str, Any] = {}  # what families hand on; other buckets may take its memory, being replayed apart

        def draft() -> None:
            opening = _at_fixed_lengths(open_round(state, staged), passes)
            tree, noise = propose(state, head, opening, self._spec)
            made["drafted"] = opening, tree, noise

        def check() -> Tensor:
            opening, tree, noise = made["drafted"]
            roots = replace(opening.roots, covered=passes.verify.cover)
            verified = verify(state, roots, tree, staged.nodes, staged.needs, noise=noise, taps=True)
            outcome = commit(state, opening, tree, verified, -1, simulated=self._spec.simulate_acceptance)
            made["checked"] = verified, outcome
            self._answers[bucket] = drafted_answer(opening, outcome, None)
            return self._answers[bucket].words()

        def extend() -> None:
            opening, (verified, outcome) = made["drafted"][0], made["checked"]
            publish_round(state, opening, outcome, follow(state, head, opening, verified, outcome))

        self._graphs.record(bucket, {Family.DRAFT: draft, Family.VERIFY: check, Family.EXTEND: extend})

    def _hold(self, bucket: RoundBucket) -> _Passes:
        head, config = self._head, self._head.config
        far = reach(bucket.nodes, bucket.depth, bucket.topk, config)
        drafted = max(bucket.depth - 1, 1) if config.parallel else bucket.topk
        extended = bucket.nodes if bucket.topk == 1 else bucket.depth + 1
        own: Any = head.attention

        def held(attention: Capturable, queries: int) -> HeldPass:
            return HeldPass(attention, self._state, bucket.rows, queries, far)

        return _Passes(held(own, drafted), held(self._attention, bucket.nodes), held(own, extended))


def _shape(bucket: RoundBucket) -> tuple[int, int, int, int]:
    return bucket.rows, bucket.depth, bucket.topk, bucket.nodes


def _staged(bucket: RoundBucket, fixed: FixedRows, passes: _Passes, device: torch.device) -> Staged:
    return Staged(
        rows=fixed.rows,
        turns=fixed.turns,
        counts=fixed.counts,
        nodes=Nodes(uniform_layout(bucket.rows, bucket.nodes, device), None),
        covers=Covers(passes.draft.cover, passes.verify.cover, passes.extend.cover),
        depth=bucket.depth,
        topk=bucket.topk,
        needs=NEEDS[bucket.sampling],
        part=None,
        real=fixed.real,
        drafts=fixed.drafts,
    )


def _at_fixed_lengths(opening: Opening, passes: _Passes) -> Opening:
    """Writes the true lengths where each pass's attention reads them."""
    for held in (passes.draft, passes.verify, passes.extend):
        held.prefix_lens.copy_(opening.roots.lengths)
    return opening

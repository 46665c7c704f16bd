"""Rounds as CUDA graphs, in three families for each bucket: draft, verify with acceptance, extend.

The worker asks for a bucket, stages, and replays the families in order; `engine.step.graphs` defines buckets. Every row
of a bucket's pass has the same number of nodes: those past a row's count are computed and never accepted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.shape import NO_DRAFT
from aerie.contracts.spec_section import SpecConfig
from aerie.contracts.step import Ints, StepPlan
from aerie.engine.attention import Capturable
from aerie.engine.step.batch import Cover, uniform_layout
from aerie.engine.step.graph_pass import GraphPages, GraphPass, all_short, dummy_positions, lengths_apart
from aerie.engine.step.graphs import (
    NEEDS,
    Family,
    FixedRows,
    Graphs,
    Sampling,
    bucket_for,
    fix_rows,
    kinds,
    padded_bounds,
    sampling_of,
)
from aerie.engine.step.passes import read_rows
from aerie.engine.step.results import Answer
from aerie.engine.step.state import DeviceState
from aerie.spec.drafters.drafter import GraphDrafter
from aerie.spec.round.answer import drafted_answer
from aerie.spec.round.nodes import EqualNodes
from aerie.spec.round.round import Round
from aerie.spec.round.rows import EveryRow
from aerie.spec.round.stage import Covers, Staged, reach
from aerie.spec.trees.tree import usable_nodes


@dataclass(frozen=True, slots=True)
class RoundBucket:
    rows: int
    depth: int
    topk: int
    nodes: int
    """The same for every row."""
    sampling: Sampling
    short: bool


@dataclass(frozen=True, slots=True)
class _Passes:
    """Attention for a bucket's rows and shape, shared by all its sampling kinds."""

    draft: GraphPass
    verify: GraphPass
    extend: GraphPass

    def renew(self, covered: Cover) -> None:
        for held in (self.draft, self.verify, self.extend):
            held.renew(covered)


@dataclass(frozen=True, slots=True)
class BucketRows:
    """A bucket's rows: a plan's, some of which may have no head KV, and surplus rows, which are done at length 0."""

    fixed: FixedRows

    @property
    def rows(self) -> Tensor:
        return self.fixed.rows

    @property
    def generations(self) -> Tensor:
        return self.fixed.generations

    def read(self, state: DeviceState) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        tokens, lengths, done, seeds = read_rows(state, self.rows, self.generations, self.fixed.real)
        # Rows without head KV have no seed, and what they draft from must stay finite.
        return tokens, lengths, done, torch.where(self.fixed.drafts[:, None], seeds, 0)


class RoundGraphs:
    """Graphs of the shapes that `spec` can plan, for the row counts at which it plans them."""

    def __init__(
        self,
        phases: Round,
        drafter: GraphDrafter,
        graphs: Graphs,
        attention: Capturable,
        sizes: list[int],
    ) -> None:
        """`drafter` is that of `phases`, and `attention` the target's."""
        self._phases = phases
        self._state = phases.state
        self._needs = phases.drafter.needs
        self._drafter = drafter
        self._graphs = graphs
        self._attention = attention
        self._sizes = sizes
        self._pages = {rows: GraphPages(self._state, rows) for rows in sizes}
        self._passes: dict[_Shape, _Passes] = {}
        self._answers: dict[RoundBucket, Answer] = {}
        self._read: dict[RoundBucket, Staged] = {}
        """Tensors that the recordings read and that must outlive them."""
        for rows, depth, topk, nodes in self._shapes(phases.spec):
            for short in lengths_apart(attention, rows, nodes):
                for sampling in kinds(self._state):
                    self._capture(RoundBucket(rows, depth, topk, nodes, sampling, short))

    def bucket(self, plan: StepPlan) -> RoundBucket | None:
        """The bucket that replays a step, or None. Call it once the host has noted the step's row starts.

        The plan is as shallow as its rows allow: a deeper recording serves it as well where so few nodes cannot get
        deeper than planned.
        """
        work = plan.decode
        if work is None or plan.logprobs >= 0 or plan.trees:
            return None
        rows, sampling = bucket_for(plan.rows.size, self._sizes), sampling_of(self._state.needs.of(plan.rows))
        if rows is None or sampling is None:
            return None
        topk = min(work.topk, self._needs.draft_vocabulary)
        widest = int(usable_nodes(work.nodes, topk, work.depth).max())
        fitting = (
            bucket
            for bucket in self._answers
            if (bucket.rows, bucket.topk, bucket.sampling) == (rows, topk, sampling)
            and bucket.nodes >= widest
            and (bucket.depth == work.depth or (bucket.depth > work.depth and widest <= work.depth + 1))
            and (not bucket.short or all_short(work.bounds + self._reach(bucket)))
        )
        return min(fitting, key=lambda bucket: (bucket.depth, bucket.nodes, not bucket.short), default=None)

    def stage(self, bucket: RoundBucket, plan: StepPlan) -> Callable[[], None]:
        """Must be the step's first transfer. Call the returned function once the step's pages are in the tables."""
        assert plan.decode is not None
        state, pages, passes = self._state, self._pages[bucket.rows], self._passes[_shape(bucket)]
        counts = np.where(plan.drafting, usable_nodes(plan.decode.nodes, bucket.topk, plan.decode.depth), 1)
        fixed = fix_rows(plan, bucket.rows, counts.astype(np.int32), state.tables.dummy_row, state.transfer)
        positions: Ints = padded_bounds(plan.decode.bounds, bucket.rows) + self._reach(bucket)
        covered = pages.stage(positions)

        def renew() -> None:
            pages.fill(fixed.rows, covered)
            passes.renew(covered)

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
        by_load = sorted(spec.by_load, key=lambda load: load.rows)
        before = 0
        for size in self._sizes:
            for rows in range(before + 1, size + 1):
                fitting = (load.shape for load in by_load if rows <= load.rows)
                shape = next(fitting, NO_DRAFT) if by_load else spec.shape
                if shape.drafts:
                    topk = min(shape.topk, self._needs.draft_vocabulary)
                    nodes = int(usable_nodes(np.array([shape.nodes]), topk, shape.depth)[0])
                    found.add((size, min(shape.depth, nodes - 1), topk, nodes))
            before = size
        return sorted(found, reverse=True)

    @torch.inference_mode()
    def _capture(self, bucket: RoundBucket) -> None:
        state, phases = self._state, self._phases
        state.transfer.begin()
        fixed = fix_rows(None, bucket.rows, None, state.tables.dummy_row, state.transfer)
        pages, shape = self._pages[bucket.rows], _shape(bucket)
        covered = pages.stage(dummy_positions(bucket.rows, self._reach(bucket)))
        pages.fill(fixed.rows, covered)
        if shape not in self._passes:
            self._passes[shape] = self._hold(bucket, pages, covered)
        passes = self._passes[shape]
        passes.renew(covered)
        staged = self._read[bucket] = _staged(bucket, fixed, passes, state.device)
        made: dict[str, Any] = {}  # what families hand on; other buckets may take its memory, being replayed apart

        def draft() -> None:
            opened = phases.open(staged)
            pages.prefix_lens.copy_(opened.lengths)  # where attention reads them
            made["drafted"] = opened, phases.draft(opened)

        def verify() -> Tensor:
            opened, drafted = made["drafted"]
            verified = phases.verify(opened, drafted)
            outcome = phases.accept(opened, drafted, verified)
            made["verified"] = verified, outcome
            self._answers[bucket] = drafted_answer(opened, outcome)
            return self._answers[bucket].words()

        def extend() -> None:
            opened, (verified, outcome) = made["drafted"][0], made["verified"]
            phases.publish(opened, outcome, phases.extend(opened, verified, outcome))

        self._graphs.record(bucket, {Family.DRAFT: draft, Family.VERIFY: verify, Family.EXTEND: extend})

    def _hold(self, bucket: RoundBucket, pages: GraphPages, covered: Cover) -> _Passes:
        drafted = self._drafter.draft_queries(bucket.topk, bucket.depth)
        extended = bucket.nodes if bucket.topk == 1 else bucket.depth + 1
        own: Any = self._drafter.attention

        def held(attention: Capturable, queries: int) -> GraphPass:
            return GraphPass(attention, self._state, pages, covered, queries, split=not bucket.short)

        return _Passes(held(own, drafted), held(self._attention, bucket.nodes), held(own, extended))

    def _reach(self, bucket: RoundBucket) -> int:
        return reach(bucket.nodes, bucket.depth, bucket.topk, self._needs)


_Shape = tuple[int, int, int, int, bool]


def _shape(bucket: RoundBucket) -> _Shape:
    return bucket.rows, bucket.depth, bucket.topk, bucket.nodes, bucket.short


def _staged(bucket: RoundBucket, fixed: FixedRows, passes: _Passes, device: torch.device) -> Staged:
    return Staged(
        rows=BucketRows(fixed),
        counts=fixed.counts,
        nodes=EqualNodes(uniform_layout(bucket.rows, bucket.nodes, device)),
        drafting=EveryRow(),
        drafting_counts=fixed.counts,
        widest=bucket.nodes,
        covers=Covers(passes.draft.cover, passes.verify.cover, passes.extend.cover),
        depth=bucket.depth,
        topk=bucket.topk,
        needs=NEEDS[bucket.sampling],
    )

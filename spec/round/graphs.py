"""Rounds as CUDA graphs, in three families for each bucket: draft, verify with acceptance, extend; in four for rows
with grammars, whose masks are made between the pass and the choice.

The worker asks for a bucket, stages, and replays the families in order; `engine.step.graphs` defines buckets. Every row
of a bucket's pass has the same number of nodes: those past a row's count are computed and never accepted.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.spec_section import SpecConfig
from aerie.contracts.step import Ints, StepPlan
from aerie.engine.attention import Capturable
from aerie.engine.grammars.masked import Places, Trees
from aerie.engine.sampling.masks import Masks
from aerie.engine.step.batch import Cover
from aerie.engine.step.graph_pass import GraphPages, GraphPass, all_short, dummy_positions, lengths_apart
from aerie.engine.step.graphs import (
    Family,
    Graphs,
    Sampling,
    bucket_for,
    fix_rows,
    kinds,
    padded_bounds,
    sampling_of,
)
from aerie.engine.step.masked import equal_places
from aerie.engine.step.results import Answer
from aerie.spec.drafters.drafter import GraphDrafter
from aerie.spec.round.answer import drafted_answer
from aerie.spec.round.buckets import Passes, RoundBucket, Shape, planned_shapes, shape_of, staged_in
from aerie.spec.round.round import Round
from aerie.spec.round.stage import Staged, reach
from aerie.spec.round.verify import fetch_trees
from aerie.spec.trees.tree import Tree, usable_nodes


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
        self._passes: dict[Shape, Passes] = {}
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
        rows, sampling = bucket_for(plan.rows.size, self._sizes), sampling_of(self._state, plan)
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
        state, pages, passes = self._state, self._pages[bucket.rows], self._passes[shape_of(bucket)]
        fixed = fix_rows(plan, bucket.rows, self._counts(bucket, plan), state.tables.dummy_row, state.transfer)
        positions: Ints = padded_bounds(plan.decode.bounds, bucket.rows) + self._reach(bucket)
        covered = pages.stage(positions)

        def renew() -> None:
            pages.fill(fixed.rows, covered)
            passes.renew(covered)

        return renew

    def draft(self, bucket: RoundBucket) -> Trees | None:
        """Returns the trees if masks are made for them."""
        return fetch_trees(self._state, self._graphs.replay(Family.DRAFT, bucket))

    def run(self, bucket: RoundBucket) -> Tensor:
        """Returns the answer's words, unless the choice has its own recording."""
        words: Tensor = self._graphs.replay(bucket.sampling.checks, bucket)
        return words

    def choose(self, bucket: RoundBucket) -> Tensor:
        """Returns the answer's words."""
        words: Tensor = self._graphs.replay(Family.CHOOSE, bucket)
        return words

    def answer(self, bucket: RoundBucket) -> Answer:
        return self._answers[bucket]

    def places(self, bucket: RoundBucket, plan: StepPlan) -> Places:
        return equal_places(self._counts(bucket, plan), bucket.nodes, bucket.rows)

    def extend(self, bucket: RoundBucket) -> None:
        self._graphs.replay(Family.EXTEND, bucket)

    @staticmethod
    def _counts(bucket: RoundBucket, plan: StepPlan) -> Ints:
        """[rows of the plan] nodes to verify."""
        work = plan.decode
        assert work is not None
        return np.where(plan.drafting, usable_nodes(work.nodes, bucket.topk, work.depth), 1).astype(np.int32)

    def _shapes(self, spec: SpecConfig) -> list[tuple[int, int, int, int]]:
        """Rows, depth, topk and nodes of every bucket, the largest first."""
        found: set[tuple[int, int, int, int]] = set()
        before = 0
        for size in self._sizes:
            for shape in planned_shapes(spec, range(before + 1, size + 1)):
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
        pages, shape = self._pages[bucket.rows], shape_of(bucket)
        covered = pages.stage(dummy_positions(bucket.rows, self._reach(bucket)))
        pages.fill(fixed.rows, covered)
        if shape not in self._passes:
            self._passes[shape] = self._hold(bucket, pages, covered)
        passes = self._passes[shape]
        passes.renew(covered)
        staged = self._read[bucket] = staged_in(bucket, kinds(state)[bucket.sampling], fixed, passes, state.device)
        made: dict[str, Any] = {}  # what families hand on; other buckets may take its memory, being replayed apart

        def draft() -> Tree:
            opened = phases.open(staged)
            pages.prefix_lens.copy_(opened.lengths)  # where attention reads them
            drafted = phases.draft(opened)
            made["drafted"] = opened, drafted
            return drafted.tree

        def forward() -> None:
            made["passed"] = phases.run(*made["drafted"])

        def choose(masks: Masks | None) -> Tensor:
            opened, drafted = made["drafted"]
            verified = phases.choose(opened, drafted, made["passed"], masks)
            outcome = phases.accept(opened, drafted, verified)
            made["verified"] = verified, outcome
            self._answers[bucket] = drafted_answer(opened, outcome)
            return self._answers[bucket].words()

        def verify() -> Tensor:
            forward()
            return choose(None)

        def choose_masked() -> Tensor:
            assert state.masked is not None
            return choose(state.masked.at(bucket.rows * bucket.nodes))

        def extend() -> None:
            opened, (verified, outcome) = made["drafted"][0], made["verified"]
            phases.publish(opened, outcome, phases.extend(opened, verified, outcome))

        checks: dict[Family, Callable[[], Any]] = {Family.VERIFY: verify}
        if bucket.sampling is Sampling.MASKED:
            checks = {Family.FORWARD: forward, Family.CHOOSE: choose_masked}
        self._graphs.record(bucket, {Family.DRAFT: draft, **checks, Family.EXTEND: extend})

    def _hold(self, bucket: RoundBucket, pages: GraphPages, covered: Cover) -> Passes:
        drafted = self._drafter.draft_queries(bucket.topk, bucket.depth)
        extended = bucket.nodes if bucket.topk == 1 else bucket.depth + 1
        own: Any = self._drafter.attention

        def held(attention: Capturable, queries: int) -> GraphPass:
            return GraphPass(attention, self._state, pages, covered, queries, split=not bucket.short)

        return Passes(held(own, drafted), held(self._attention, bucket.nodes), held(own, extended))

    def _reach(self, bucket: RoundBucket) -> int:
        return reach(bucket.nodes, bucket.depth, bucket.topk, self._needs)

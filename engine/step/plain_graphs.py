"""Plain decoding as CUDA graphs: a target pass for each bucket of rows, with choice, cut and publishing."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.step import StepPlan
from aerie.engine.attention import Capturable
from aerie.engine.sampling.masks import Masks
from aerie.engine.step.batch import stage_changes, uniform_layout
from aerie.engine.step.clock import ReadTimes
from aerie.engine.step.graph_pass import GraphPages, GraphPass, all_short, dummy_positions, lengths_apart
from aerie.engine.step.graphs import (
    Family,
    Graphs,
    Sampling,
    bucket_for,
    fix_rows,
    kinds,
    padded_bounds,
    row_buckets,
    sampling_of,
)
from aerie.engine.step.masked import Sent, choose_then, equal_places
from aerie.engine.step.passes import DecodeRows, Passed, choose_next, decode, publish
from aerie.engine.step.plain_step import Extend
from aerie.engine.step.results import Answer, plain_answer, send
from aerie.engine.step.state import DeviceState

StageKeep = Callable[[StepPlan | None, int], Extend]
"""Stages which of a plan's rows rest, padded to so many; without a plan none does. What it returns keeps their taps."""


@dataclass(frozen=True, slots=True)
class PlainBucket:
    rows: int
    sampling: Sampling
    short: bool


class PlainGraphs:
    """Graphs of steps in which nothing is drafted and no head is extended."""

    def __init__(
        self,
        state: DeviceState,
        graphs: Graphs,
        attention: Capturable,
        sizes: list[int] | None = None,
        keep: StageKeep | None = None,
    ) -> None:
        """With `keep`, which a device has whose rows may rest, each step takes taps."""
        self._state = state
        self._keep = keep
        self._graphs = graphs
        self._sizes = row_buckets(state.capacity.rows) if sizes is None else sizes
        self._attention = attention
        self._pages = {rows: GraphPages(state, rows) for rows in self._sizes}
        self._held: dict[tuple[int, bool], GraphPass] = {}
        self._answers: dict[PlainBucket, Answer] = {}
        self._read: dict[PlainBucket, tuple[DecodeRows, Extend | None]] = {}
        """Tensors that recordings read and that must outlive them."""
        for rows in reversed(self._sizes):  # the largest first: the others reuse its memory in the pool
            for short in lengths_apart(attention, rows, 1):
                for sampling in kinds(state):
                    self._capture(PlainBucket(rows, sampling, short))

    def bucket(self, plan: StepPlan) -> PlainBucket | None:
        """The bucket of a step that can be replayed, else None. Call it once the host knows the step's changes."""
        if plan.decode is None or plan.drafting.any() or plan.logprobs >= 0:
            return None
        rows, sampling = bucket_for(plan.rows.size, self._sizes), sampling_of(self._state, plan)
        if rows is None or sampling is None:
            return None
        return PlainBucket(rows, sampling, (rows, True) in self._held and all_short(plan.decode.bounds + 1))

    def launch(self, bucket: PlainBucket, plan: StepPlan, times: ReadTimes, sent: Sent) -> None:
        """Runs the whole step. Call it after the transfer's `begin`: its rows are the first values put."""
        assert plan.decode is not None
        state, pages, graphs = self._state, self._pages[bucket.rows], self._graphs
        with state.clock.phase("verify"):
            with state.transfer.together():
                fixed = fix_rows(plan, bucket.rows, None, state.tables.dummy_row, state.transfer)
                self._stage_keep(plan, bucket)
                covered = pages.stage(padded_bounds(plan.decode.bounds, bucket.rows) + 1)
                change = stage_changes(plan, state.tables, state.transfer)
            change()
            pages.fill(fixed.rows, covered)
            self._held[bucket.rows, bucket.short].renew(covered)
            words = graphs.replay(bucket.sampling.checks, bucket)

        def rest(sent: Sent, masks: Masks | None) -> None:
            chosen = words
            if masks is not None:  # at the addresses that the recording reads
                with state.clock.phase("verify"):
                    chosen = graphs.replay(Family.CHOOSE, bucket)
            sent(send(self._answers[bucket], state.transfer, plan, times, chosen))

        choose_then(state, sent, rest, lambda: equal_places(np.ones_like(plan.rows), 1, bucket.rows))

    @torch.inference_mode()
    def _capture(self, bucket: PlainBucket) -> None:
        state, pages, shape = self._state, self._pages[bucket.rows], (bucket.rows, bucket.short)
        state.transfer.begin()
        fixed = fix_rows(None, bucket.rows, None, state.tables.dummy_row, state.transfer)
        keep = self._stage_keep(None, bucket)
        covered = pages.stage(dummy_positions(bucket.rows, 1))
        pages.fill(fixed.rows, covered)
        if shape not in self._held:
            self._held[shape] = GraphPass(self._attention, state, pages, covered, 1, split=not bucket.short)
        self._held[shape].renew(covered)
        lay = uniform_layout(bucket.rows, 1, state.device)
        places = DecodeRows(fixed.rows, fixed.generations, lay, self._held[shape].cover, fixed.real, pages.prefix_lens)
        self._read[bucket] = places, keep

        passed: list[Passed] = []  # what FORWARD hands on

        def forward() -> None:
            passed[:] = [decode(state, places, taps=keep is not None)]

        def choose(masks: Masks | None) -> Tensor:
            result = choose_next(state, passed[0], kinds(state)[bucket.sampling], masks=masks)
            publish(state, places, result, None if keep is None else keep(result))
            self._answers[bucket] = plain_answer(result)
            return self._answers[bucket].words()

        def verify() -> Tensor:
            forward()
            return choose(None)

        def choose_masked() -> Tensor:
            assert state.masked is not None
            return choose(state.masked.at(bucket.rows))

        if bucket.sampling is Sampling.MASKED:
            self._graphs.record(bucket, {Family.FORWARD: forward, Family.CHOOSE: choose_masked})
        else:
            self._graphs.record(bucket, {Family.VERIFY: verify})

    def _stage_keep(self, plan: StepPlan | None, bucket: PlainBucket) -> Extend | None:
        return None if self._keep is None else self._keep(plan, bucket.rows)

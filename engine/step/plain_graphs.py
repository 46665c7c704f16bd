"""Plain decoding as CUDA graphs: a target pass for each bucket of rows, with choice, cut and publishing."""

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.contracts.step import StepPlan
from aerie.engine.attention import Capturable
from aerie.engine.step.batch import cover, stage_changes, uniform_layout
from aerie.engine.step.clock import ReadTimes
from aerie.engine.step.graphs import (
    NEEDS,
    Family,
    GraphPass,
    Graphs,
    Sampling,
    bucket_for,
    fix_rows,
    kinds,
    padded_bounds,
    row_buckets,
    sampling_of,
)
from aerie.engine.step.passes import DecodeRows, decode, publish
from aerie.engine.step.results import Answer, Pending, plain_answer, send
from aerie.engine.step.state import DeviceState


@dataclass(frozen=True, slots=True)
class PlainBucket:
    rows: int
    sampling: Sampling


class PlainGraphs:
    """Graphs of steps in which nothing is drafted and no head is extended."""

    def __init__(
        self, state: DeviceState, graphs: Graphs, attention: Capturable, sizes: list[int] | None = None
    ) -> None:
        self._state = state
        self._graphs = graphs
        self._sizes = row_buckets(state.capacity.rows) if sizes is None else sizes
        self._held: dict[int, GraphPass] = {}
        self._answers: dict[PlainBucket, Answer] = {}
        self._read: dict[PlainBucket, DecodeRows] = {}
        """Tensors that recordings read and that must outlive them."""
        for rows in reversed(self._sizes):  # the largest first: the others reuse its memory in the pool
            self._held[rows] = GraphPass(attention, state, rows, 1, 1)
            for sampling in kinds(state):
                self._capture(PlainBucket(rows, sampling))

    def bucket(self, plan: StepPlan) -> PlainBucket | None:
        """The bucket of a step that can be replayed, else None. Call it once the host knows the step's changes."""
        if plan.decode is None or plan.drafting.any() or plan.logprobs >= 0:
            return None
        rows, sampling = bucket_for(plan.rows.size, self._sizes), sampling_of(self._state.needs.of(plan.rows))
        return None if rows is None or sampling is None else PlainBucket(rows, sampling)

    def launch(self, bucket: PlainBucket, plan: StepPlan, times: ReadTimes) -> Pending:
        """Runs the whole step. Call it after the transfer's `begin`: its rows are the first values put."""
        assert plan.decode is not None
        state, held = self._state, self._held[bucket.rows]
        with state.clock.phase("verify"):
            with state.transfer.together():
                fixed = fix_rows(plan, bucket.rows, None, state.tables.dummy_row, state.transfer)
                change = stage_changes(plan, state.tables, state.transfer)
                bounds = padded_bounds(plan.decode.bounds, bucket.rows)
                covered = cover(bounds + 1, state.tables.page_size, state.transfer)
            change()
            held.renew(fixed.rows, covered)
            words = self._graphs.replay(Family.VERIFY, bucket)
        return send(self._answers[bucket], state.transfer, plan, times, words)

    @torch.inference_mode()
    def _capture(self, bucket: PlainBucket) -> None:
        state, held = self._state, self._held[bucket.rows]
        state.transfer.begin()
        fixed = fix_rows(None, bucket.rows, None, state.tables.dummy_row, state.transfer)
        lay = uniform_layout(bucket.rows, 1, state.device)
        places = self._read[bucket] = DecodeRows(
            fixed.rows, fixed.generations, lay, held.cover, fixed.real, held.prefix_lens
        )

        def verify() -> Tensor:
            result = decode(state, places, NEEDS[bucket.sampling], taps=False)
            publish(state, places, result)
            self._answers[bucket] = plain_answer(result)
            return self._answers[bucket].words()

        self._graphs.record(bucket, {Family.VERIFY: verify})

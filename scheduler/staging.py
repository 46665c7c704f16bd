"""Turns a decision of the policy into the arrays of a StepPlan, and updates the rows for its launch.

Called by the loop right before the launch. Invariant: a plan shares no memory with the scheduler's columns, so the lane
may read it while the host moves on.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from aerie.contracts.sampling import MAX_STOP_IDS, columns_of
from aerie.contracts.step import DecodeWork, Longs, PrefillWork, RowStarts, StepKind, StepPlan
from aerie.scheduler.edit_slots import edit_starts
from aerie.scheduler.request import Phase, Request
from aerie.scheduler.rows import Rows
from aerie.scheduler.steps import DecodeStep, PrefillStep


@dataclass(frozen=True, slots=True)
class Flight:
    """A launched step, as settle needs it."""

    plan: StepPlan
    rows: Longs
    """[R] its rows."""
    stamps: Longs
    """[R] the owners of its rows at launch."""
    steady: bool
    """Whether the iteration before launched a step too, so that the lane waited for the loop alone."""


class Staging:
    """Builds and numbers plans."""

    def __init__(self, rows: Rows, *, vocabulary: int) -> None:
        self._rows = rows
        self._vocabulary = vocabulary
        self._number = 0

    def stage(self, step: PrefillStep | DecodeStep, *, steady: bool = False) -> Flight:
        if isinstance(step, DecodeStep):
            rows, plan = step.rows, self._decode(step)
        else:
            rows = np.array([request.row for request in step.requests], dtype=np.int64)
            plan = self._prefill(step, rows)
        self._number += 1
        return Flight(plan, rows, self._rows.future.stamp(rows), steady)

    def _decode(self, step: DecodeStep) -> StepPlan:
        columns, rows, shape = self._rows, step.rows, step.shape
        generations = columns.future.resolve(rows)
        columns.future.publish(rows)
        columns.bounds[rows] += shape.depth + 1
        columns.pledged[rows] += 1
        return StepPlan(
            number=self._number,
            kind=StepKind.DECODE,
            rows=rows.astype(np.int32),
            generations=generations,
            drafting=step.drafting,
            prefill=None,
            decode=DecodeWork(bounds=step.bounds, nodes=step.nodes, depth=shape.depth, topk=shape.topk),
            starts=self._starts(),
            page_updates=columns.memory.table.drain(),
            logprobs=columns.most_logprobs(rows),
            resting=step.resting,
            fresh=step.fresh,
            behind=step.behind,
            trees=columns.with_trees > 0,
        )

    def _prefill(self, step: PrefillStep, rows: Longs) -> StepPlan:
        columns = self._rows
        starts = np.array([request.computed for request in step.requests], dtype=np.int32)
        counts = np.array(step.counts, dtype=np.int32)
        chunks: list[int] = []
        next_ids = []
        for request, count in zip(step.requests, step.counts, strict=True):
            end = request.computed + count
            chunks += request.tokens[request.computed : end]
            next_ids.append(request.tokens[end] if end < len(request.tokens) else -1)
            request.computed = end
            if end == len(request.tokens):
                columns.begin_decoding(request)
        is_last = np.array([request.phase is Phase.DECODE for request in step.requests], dtype=np.bool_)
        generations = columns.future.resolve(rows)
        columns.future.publish(rows[is_last])
        return StepPlan(
            number=self._number,
            kind=StepKind.PREFILL,
            rows=rows.astype(np.int32),
            generations=generations,
            drafting=columns.drafting[rows],
            prefill=PrefillWork(
                token_ids=np.array(chunks, dtype=np.int32),
                starts=starts,
                counts=counts,
                is_last=is_last,
                next_ids=np.array(next_ids, dtype=np.int32),
            ),
            decode=None,
            starts=self._starts(),
            page_updates=columns.memory.table.drain(),
            logprobs=columns.most_logprobs(rows),
        )

    def _starts(self) -> RowStarts | None:
        newcomers, self._rows.newcomers = self._rows.newcomers, []
        return _row_starts(newcomers, self._vocabulary) if newcomers else None


def _row_starts(requests: list[Request], vocabulary: int) -> RowStarts:
    """What the device keeps about new owners until the row's next owner."""
    stop_ids = np.full((len(requests), MAX_STOP_IDS), -1, dtype=np.int32)
    for index, request in enumerate(requests):
        stop_ids[index, : len(request.stop_ids)] = request.stop_ids
    return RowStarts(
        rows=np.array([request.row for request in requests], dtype=np.int32),
        noise_keys=np.array([request.noise_key for request in requests], dtype=np.int64),
        sampling=columns_of([request.message.sampling for request in requests]),
        prompt_lengths=np.array([request.prompt_length for request in requests], dtype=np.int32),
        limits=np.array([request.limit for request in requests], dtype=np.int32),
        min_lengths=np.array(
            [min(r.prompt_length + r.message.sampling.min_tokens, r.limit) for r in requests], dtype=np.int32
        ),
        stop_ids=stop_ids,
        edits=edit_starts(requests, vocabulary),
        **_guides(requests),
    )


def _guides(requests: list[Request]) -> dict[str, Any]:
    """The fields of RowStarts about grammars."""
    if all(request.message.grammar is None for request in requests):
        return {}
    numbers = [-1 if request.message.grammar is None else request.number for request in requests]
    answers = [request.tokens[request.prompt_length :] for request in requests]
    return {"guides": np.array(numbers, dtype=np.int64), "answers": answers}

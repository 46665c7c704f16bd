"""Times a few steps of a lane before it serves, so that the first choices rest on this machine's costs.

The steps run on rows that nobody owns, whose pages are all the dummy page: what they write is never read. Called once
by the loop when `spec.planner` is goodput.
"""

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence

import numpy as np

from aerie.contracts.sampling import MAX_STOP_IDS, DistributionParams, columns_of
from aerie.contracts.step import DecodeWork, Lane, RowStarts, StepKind, StepOutput, StepPlan
from aerie.scheduler.planner.costs import StepCosts
from aerie.scheduler.planner.samples import Alike, SettledSteps

SECONDS = 1.5
"""Calibration stops after the step that passes this."""
_ROUNDS = 4
_PAUSE = 5e-4
"""Seconds before each step, as a serving loop and its clients leave them: of steps that follow one another at once, the
weights of a small model stay in the caches.
"""
_ROWS = (1, 4, 16, 64)


def calibrated(lane: Lane, rows: int, depths: Sequence[int], most_tokens: int) -> StepCosts:
    """Costs of steps of up to `rows` rows. If the lane reports no times, they are not `ready`."""
    ends, numbers = time.monotonic() + SECONDS, itertools.count()
    sizes = sorted({min(size, rows) for size in _ROWS})
    _run(lane, next(numbers), 1, 0, starts=_starts(rows))
    first = [_run(lane, next(numbers), 1, 0) for _ in range(_ROUNDS)]
    verify = statistics.median(output.phase_seconds.get("verify", 0.0) for output in first)
    costs = StepCosts(most_tokens, unit=verify or 2e-3)
    if not verify:
        return costs
    for size, depth in _order(sizes, depths):
        steps = SettledSteps()
        for number in range(_ROUNDS + 2):  # the last one, plain, brings the last extend
            plan = _plan(next(numbers), *((size, depth) if number <= _ROUNDS else (1, 0)))
            time.sleep(_PAUSE)
            lane.launch(plan)
            steps.take(plan, plan.rows.astype(np.int64), np.ones(len(plan.rows), np.bool_), lane.settle(), waited=False)
        for step in steps.whole[1:]:  # the first of a shape touches memory, and is left out
            costs.observe(Alike([step]).work(), step.phases, None)
        if time.monotonic() > ends:
            break
    costs.anchor()
    return costs


def _order(sizes: Sequence[int], depths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The extremes first: what lies between can be inferred."""
    few = [0, depths[0], depths[-1]] if depths else [0]
    cells = [(size, depth) for depth in dict.fromkeys(few) for size in sizes]
    yield from sorted(cells, key=lambda cell: cell[0] * (cell[1] + 1))


def _run(lane: Lane, number: int, rows: int, depth: int, *, starts: RowStarts | None = None) -> StepOutput:
    lane.launch(_plan(number, rows, depth, starts=starts))
    return lane.settle()


def _plan(number: int, rows: int, depth: int, *, starts: RowStarts | None = None) -> StepPlan:
    return StepPlan(
        number=number,
        kind=StepKind.DECODE,
        rows=np.arange(rows, dtype=np.int32),
        generations=np.zeros(rows, dtype=np.int32),  # always the first generation: every step begins at length 0
        drafting=np.full(rows, depth > 0),
        prefill=None,
        decode=DecodeWork(
            bounds=np.zeros(rows, dtype=np.int32),
            nodes=np.full(rows, depth + 1, dtype=np.int32),
            depth=depth,
            topk=1,
        ),
        starts=starts,
    )


def _starts(rows: int) -> RowStarts:
    def of(value: float, kind: type) -> np.ndarray:
        return np.full(rows, value, dtype=kind)

    return RowStarts(
        rows=np.arange(rows, dtype=np.int32),
        noise_keys=of(0, np.int64),
        sampling=columns_of([DistributionParams(temperature=0.0)] * rows),
        prompt_lengths=of(0, np.int32),
        limits=of(1 << 20, np.int32),
        min_lengths=of(0, np.int32),
        stop_ids=np.full((rows, MAX_STOP_IDS), -1, dtype=np.int32),
    )

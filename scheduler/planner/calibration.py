"""Times a few steps of a lane before it serves, so that the first choices rest on this machine's costs.

The steps run on rows that nobody owns. Most of these hold one token in the dummy page; some hold long ones for a while,
since attention to a long context may take most of a step. No page is theirs when it is over. Called once by the loop
when `spec.planner` is goodput.
"""

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence

import numpy as np

from aerie.contracts.sampling import MAX_STOP_IDS, DistributionParams, columns_of
from aerie.contracts.step import (
    Capacity,
    DecodeWork,
    Lane,
    PageUpdates,
    PrefillWork,
    RowStarts,
    StepKind,
    StepOutput,
    StepPlan,
)
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
_LONG_ROWS, _LONG = 4, 512
"""Rows with a long context, and the most tokens of each."""
_PROMPTS = (16, 64)
"""Tokens of the prompts whose head KV is timed."""
_PLACED = 1
"""The generation that a prefill writes and that every step here reads, so that all of them begin at the same lengths.
"""


def calibrated(lane: Lane, rows: int, depths: Sequence[int], most_tokens: int) -> StepCosts:
    """Costs of steps of up to `rows` rows. If the lane reports no times, they are not `ready`."""
    ends, numbers = time.monotonic() + SECONDS, itertools.count()
    sizes = sorted({min(size, rows) for size in _ROWS})
    _run(lane, _placed(next(numbers), sizes[-1], 1))
    first = [_run(lane, _plan(next(numbers), 1, 0)) for _ in range(_ROUNDS)]
    verify = statistics.median(output.phase_seconds.get("verify", 0.0) for output in first)
    costs = StepCosts(most_tokens, unit=verify or 2e-3)
    if not verify:
        return costs
    few = min(_LONG_ROWS, rows)
    long = _longest(lane.capacity, few)
    if long > 1:
        _observe(lane, costs, numbers, few, 0)
        _run(lane, _placed(next(numbers), few, long, _pages(lane.capacity, few, long)))
        _observe(lane, costs, numbers, few, 0, length=long)
        _run(lane, _placed(next(numbers), few, 1))
    for size, depth in _order(sizes, depths):
        _observe(lane, costs, numbers, size, depth)
        if time.monotonic() > ends:
            break
    else:
        for prompt in _PROMPTS if long >= _PROMPTS[-1] and lane.capacity.drafts else ():
            _observe_prompt(lane, costs, numbers, prompt)
        _run(lane, _placed(next(numbers), 1, 1))
    costs.anchor()
    return costs


def _observe(lane: Lane, costs: StepCosts, numbers: Iterator[int], rows: int, depth: int, *, length: int = 1) -> None:
    """Costs take in a few steps of rows of this length."""
    steps = SettledSteps()
    for number in range(_ROUNDS + 2):  # the last one, plain, brings the last extend
        plan = _plan(next(numbers), *((rows, depth) if number <= _ROUNDS else (1, 0)), length=length)
        time.sleep(_PAUSE)
        steps.take(plan, plan.rows.astype(np.int64), np.ones(len(plan.rows), np.bool_), _run(lane, plan), waited=False)
    for step in steps.whole[1:]:  # the first of a shape touches memory, and is left out
        costs.observe(Alike([step]).work(), step.phases, None)


def _observe_prompt(lane: Lane, costs: StepCosts, numbers: Iterator[int], tokens: int) -> None:
    """Costs take in what the head's KV of a few prompts takes."""
    pages = _pages(lane.capacity, 1, tokens)
    for number in range(_ROUNDS):
        _run(lane, _placed(next(numbers), 1, tokens, pages, run=tokens, headed=True))
        seconds = _run(lane, _plan(next(numbers), 1, 0, length=tokens)).phase_seconds.get("extend", 0.0)
        if number and seconds:
            costs.observe_catch_up(tokens, seconds)


def _longest(capacity: Capacity, rows: int) -> int:
    """Tokens that so many rows can hold and still decode, up to `_LONG`."""
    pages = (capacity.pages - 1) // rows  # one is the dummy page
    return min(_LONG, capacity.max_length - 1, pages * capacity.page_size - capacity.reserve - 1)


def _order(sizes: Sequence[int], depths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The extremes first: what lies between can be inferred."""
    few = [0, depths[0], depths[-1]] if depths else [0]
    cells = [(size, depth) for depth in dict.fromkeys(few) for size in sizes]
    yield from sorted(cells, key=lambda cell: cell[0] * (cell[1] + 1))


def _run(lane: Lane, plan: StepPlan) -> StepOutput:
    lane.launch(plan)
    return lane.settle()


def _plan(number: int, rows: int, depth: int, *, length: int = 1) -> StepPlan:
    return StepPlan(
        number=number,
        kind=StepKind.DECODE,
        rows=np.arange(rows, dtype=np.int32),
        generations=np.full(rows, _PLACED, dtype=np.int32),
        drafting=np.full(rows, depth > 0),
        prefill=None,
        decode=DecodeWork(
            bounds=np.full(rows, length, dtype=np.int32),
            nodes=np.full(rows, depth + 1, dtype=np.int32),
            depth=depth,
            topk=1,
        ),
    )


def _placed(
    number: int, rows: int, length: int, pages: PageUpdates | None = None, *, run: int = 1, headed: bool = False
) -> StepPlan:
    """Gives rows a new owner of `length` tokens, of which the last `run` are run, and extend the head if `headed`."""
    return StepPlan(
        number=number,
        kind=StepKind.PREFILL,
        rows=np.arange(rows, dtype=np.int32),
        generations=np.full(rows, 1 - _PLACED, dtype=np.int32),
        drafting=np.full(rows, headed),
        prefill=PrefillWork(
            token_ids=np.zeros(rows * run, dtype=np.int32),
            starts=np.full(rows, length - run, dtype=np.int32),
            counts=np.full(rows, run, dtype=np.int32),
            is_last=np.ones(rows, dtype=np.bool_),
            next_ids=np.full(rows, -1, dtype=np.int32),
        ),
        decode=None,
        starts=_starts(rows),
        page_updates=pages,
    )


def _pages(capacity: Capacity, rows: int, length: int) -> PageUpdates:
    """Pages of their own for so many tokens of each row and what a step may write."""
    count = -(-(length + capacity.reserve) // capacity.page_size)  # of a row
    return PageUpdates(
        rows=np.repeat(np.arange(rows, dtype=np.int32), count),
        slots=np.tile(np.arange(count, dtype=np.int32), rows),
        pages=np.arange(1, rows * count + 1, dtype=np.int32),
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

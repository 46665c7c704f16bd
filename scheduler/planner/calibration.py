"""Times a few steps of a lane before it serves, so that the first choices rest on this machine's costs.

The steps run on rows that nobody owns. Most of these hold one token in the dummy page; some hold long ones for a while,
since attention to a long context may take most of a step. They sample at a temperature at which a head is sure of
whatever it drafts: else chains would end at their first level, and deep ones would be guessed. No page is theirs when
it is over. Called once by the loop when `spec.planner` is goodput.
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
from aerie.scheduler.planner.alike import Alike, without_pauses
from aerie.scheduler.planner.costs import StepCosts
from aerie.scheduler.planner.samples import Settled, SettledSteps

SECONDS = 1.5
"""Calibration stops after the cell of steps that passes this."""
_PASSES, _ROUNDS = 4, 2
"""Each cell is timed in several passes over all of them: a machine may slow down for a while, which must not look like
a cost of the cell that ran then.
"""
_FIRST = 4
"""Steps whose median says how long a step is, about."""
_PAUSE = 5e-4
"""Seconds before each step, as a serving loop and its clients leave them: of steps that follow one another at once, the
weights of a small model stay in the caches.
"""
_ROWS = (1, 4, 16, 64, 256)
_LONG_ROWS, _LONG, _ALL = 4, 512, 128
"""Rows with a long context, and the most tokens of each; of each if all rows have them: what a token costs to see grows
once the tokens of all rows no longer fit into a cache.
"""
_VERIFIED = 128
"""Tokens that a step with a context verifies at most: with many rows, one of deep chains would take most of the time.
"""
_UNTIMED = 4
"""Steps of rows with a context before those that count: what they hold is in the caches then, as while they decode."""
_PROMPTS = (16, 64)
"""Tokens of the prompts whose head KV is timed."""
_SURE = 1e-4
"""The temperature of all rows, low but not greedy."""
_PLACED = 1
"""The generation that a prefill writes and that every step here reads, so that all of them begin at the same lengths.
"""


def calibrated(lane: Lane, rows: int, depths: Sequence[int], most_tokens: int) -> StepCosts:
    """Costs of steps of up to `rows` rows. If the lane reports no times, they are not `ready`."""
    ends, numbers = time.monotonic() + SECONDS, itertools.count()
    sizes = sorted({min(size, rows) for size in _ROWS})
    _run(lane, _placed(next(numbers), sizes[-1], 1, headed=True))  # heads have something to draft from
    first = [_run(lane, _plan(next(numbers), 1, 0)) for _ in range(_FIRST)]
    verify = statistics.median(output.phase_seconds.get("verify", 0.0) for output in first)
    costs = StepCosts(most_tokens, unit=verify or 2e-3)
    if not verify:
        return costs
    few = min(_LONG_ROWS, rows)
    long, common = _longest(lane.capacity, few), min(_longest(lane.capacity, sizes[-1]), _ALL)
    cells = [_Cell(size, depth) for size, depth in _order(sizes, depths)]
    middle = sizes[len(sizes) // 2]
    for size, length in dict.fromkeys(((few, long), (middle, common), (sizes[-1], common))):
        if length > 1:
            cells += (_Cell(size, depth, length) for depth in (0, *_deep(depths, size)))
    prompts = [_Prompt(tokens) for tokens in _PROMPTS if long >= _PROMPTS[-1] and lane.capacity.drafts]
    timed: list[_Cell | _Prompt] = [*cells, *prompts]
    for one in timed * _PASSES:
        one.run(lane, numbers)
        if time.monotonic() > ends:
            break
    for cell in sorted(cells, key=lambda cell: cell.length):  # what tokens cost first, then what seeing others adds
        cell.teach(costs)
    for prompt in prompts:
        prompt.teach(costs)
    known = [prompt for prompt in prompts if prompt.passes]
    costs.like_prompts([one.tokens for one in known], [without_pauses(one.passes) for one in known])
    costs.anchor()
    return costs


class _Cell:
    """Decode steps of rows of one length, and what they took."""

    def __init__(self, rows: int, depth: int, length: int = 1) -> None:
        self._rows = rows
        self._depth = depth
        self.length = length
        self._steps: list[Settled] = []

    def run(self, lane: Lane, numbers: Iterator[int]) -> None:
        untimed = 1  # the first of a shape touches memory
        if self.length > 1:
            untimed = _UNTIMED
            _run(lane, _placed(next(numbers), self._rows, self.length, _pages(lane.capacity, self._rows, self.length)))
        steps = SettledSteps()
        for left in range(untimed + _ROUNDS, -1, -1):  # the last one, plain, brings the last extend
            shape = (self._rows, self._depth) if left else (1, 0)
            plan = _plan(next(numbers), *shape, length=self.length)
            time.sleep(_PAUSE)
            steps.take(
                plan, plan.rows.astype(np.int64), np.ones(len(plan.rows), np.bool_), _run(lane, plan), waited=False
            )
        self._steps += steps.whole[untimed:]
        if self.length > 1:
            _run(lane, _placed(next(numbers), self._rows, 1))

    def teach(self, costs: StepCosts) -> None:
        """The mean of its steps counts as one sample."""
        if self._steps:
            group = Alike(self._steps)
            costs.observe(group.work(), group.times()[0], None)


class _Prompt:
    """Prompts of so many tokens, and what they and their head's KV took."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.passes: list[float] = []
        self._extends: list[float] = []

    def run(self, lane: Lane, numbers: Iterator[int]) -> None:
        tokens, pages = self.tokens, _pages(lane.capacity, 1, self.tokens)
        for number in range(_ROUNDS + 1):
            read = _run(lane, _placed(next(numbers), 1, tokens, pages, run=tokens, headed=True))
            after = _run(lane, _plan(next(numbers), 1, 0, length=tokens))
            if number and "extend" in after.phase_seconds:
                self.passes.append(read.phase_seconds.get("prefill", 0.0))
                self._extends.append(after.phase_seconds["extend"])
        _run(lane, _placed(next(numbers), 1, 1))

    def teach(self, costs: StepCosts) -> None:
        if self._extends:
            costs.observe_catch_up(self.tokens, without_pauses(self._extends))


def _longest(capacity: Capacity, rows: int) -> int:
    """Tokens that so many rows can hold and still decode, up to `_LONG`."""
    pages = (capacity.pages - 1) // rows  # one is the dummy page
    return min(_LONG, capacity.max_length - 1, pages * capacity.page_size - capacity.reserve - 1)


def _order(sizes: Sequence[int], depths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The cheapest first, so that a slow machine misses only what it would hardly choose."""
    few = [0, depths[0], depths[-1]] if depths else [0]
    cells = [(size, depth) for depth in dict.fromkeys(few) for size in sizes]
    yield from sorted(cells, key=lambda cell: cell[0] * (cell[1] + 1))


def _deep(depths: Sequence[int], rows: int) -> Sequence[int]:
    """The deepest chains of so many rows with a context that there is time for; none without depths."""
    return [depth for depth in depths if rows * (depth + 1) <= _VERIFIED][-1:] or depths[:1]


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
        sampling=columns_of([DistributionParams(temperature=_SURE)] * rows),
        prompt_lengths=of(0, np.int32),
        limits=of(1 << 20, np.int32),
        min_lengths=of(0, np.int32),
        stop_ids=np.full((rows, MAX_STOP_IDS), -1, dtype=np.int32),
    )

"""The shape with the most expected tokens a second, for a whole batch at once.

A step commits one token of each row, and every drafted node with the chance that it survives. For a given depth and a
given set of drafting rows, the best n nodes of the batch are the n that survive most likely; since a child never
survives more often than its parent, they always form chains from the roots. So the optimum is found by sorting once and
reading the costs off the table for every n: the table may rise in any steps, and no local optimum can stop the search.
Depths and numbers of drafting rows are tried side by side as one array.

Called by `goodput` for each decode step. All arrays are kept.
"""

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np

from aerie.contracts.step import Ints, Longs
from aerie.scheduler.planner.regression import Doubles

_FEW = 8
"""Up to so many rows, every number of drafting rows is tried; beyond, shares of all rows."""
_SHARES = (1.0, 0.75, 0.5, 0.25, 0.125)
_SHIFT = 14
"""Bits of a row's index in a sort key: at most 16384 rows draft in a step."""


class Objective(Enum):
    GOODPUT = "goodput"
    """Tokens of all rows a second."""
    LATENCY = "latency"
    """The geometric mean of the rows' speeds: slow rows count as much as fast ones."""


@dataclass(slots=True)
class Chosen:
    """A shape of chains. Depth 0 drafts nothing."""

    depth: int
    nodes: int
    """Nodes beyond the roots, over all rows."""
    drafting: int
    """Rows that draft."""
    tokens: float
    """Expected tokens of the step."""
    seconds: float


@dataclass(frozen=True, slots=True)
class _Views:
    """The arrays of a choice among a given number of rows: views of the kept ones, made once."""

    options: Longs
    """[o] numbers of drafting rows to try."""
    allowed: Doubles
    """[depths, o, rows, deepest] -1 for nodes that a depth and a number of rows allow, else 0."""
    lanes: Doubles
    """[depths, o, rows * deepest]; the other arrays are like it."""
    sums: Doubles
    seconds: Doubles
    speeds: Doubles
    lengths: Doubles
    """[depths, rows * deepest]"""
    places: Longs
    passes: Doubles
    extra: Doubles
    """[depths, o]"""


class ChainChoice:
    """Finds the best chains for up to `rows` rows and the given depths, ascending."""

    def __init__(self, rows: int, depths: tuple[int, ...], objective: Objective = Objective.GOODPUT) -> None:
        assert rows < 1 << _SHIFT, f"{rows} rows; at most {(1 << _SHIFT) - 1} fit into a sort key"
        self.depths = depths
        self.order: Longs = np.zeros(rows, dtype=np.int64)
        """Indices of the rows of the last choice, the best first."""
        self._objective = objective
        self._deepest = deepest = depths[-1]
        options = max(len(_SHARES), min(rows, _FEW))
        cells = len(depths) * options * rows * deepest
        self._lanes, self._sums, self._seconds, self._speeds = (np.zeros(cells) for _ in range(4))
        self._lengths, self._passes = (np.zeros(len(depths) * rows * deepest) for _ in range(2))
        self._places: Longs = np.zeros(len(depths) * rows * deepest, dtype=np.int64)
        self._counting = np.arange(1, rows * deepest + 1, dtype=np.float64)
        self._indices: Longs = np.arange(rows)
        self._values, self._sorted = (np.zeros((rows, deepest)) for _ in range(2))
        self._keys: Longs = np.zeros(rows, dtype=np.int64)
        self._totals = np.zeros(rows)
        self._kept = np.zeros((rows, deepest), dtype=np.bool_)
        self._ones: Longs = np.zeros((rows, deepest), dtype=np.int64)
        self._counts: Longs = np.zeros(rows, dtype=np.int64)
        self._views: dict[int, _Views] = {}
        self._least = 0.0

    def choose(
        self,
        survivals: Doubles,
        rows: int,
        table: Doubles,
        draft: Doubles,
        *,
        reach: Doubles,
        pair: float = 0.0,
        joining: Doubles | None = None,
    ) -> Chosen:
        """The best shape that drafts at all, for `rows` rows of which those of `survivals` [r, deepest] may draft.

        `table` [> rows + r * deepest]: seconds of a step over so many nodes, drafting aside. `draft` [depths, r + 1]:
        seconds of drafting for so many rows. `reach` [depths]: share of the planned nodes that will be verified.
        `pair`: seconds for each committed token. `joining` [r]: seconds that a row costs before it can draft.
        """
        count = len(survivals)
        views = self._views.get(count) or self._view(count)
        self._sort(self._weighed(survivals), count)
        np.multiply(self._sorted[:count], views.allowed, out=views.lanes.reshape(views.allowed.shape))
        views.lanes.sort(axis=2)
        np.add.accumulate(views.lanes, axis=2, out=views.sums)
        self._price(views, rows, table, draft, reach)
        if joining is not None:
            self._charge(views, joining)
        return self._best(views, rows, pair)

    def nodes(self, chosen: Chosen, out: Ints) -> None:
        """Writes each row's nodes, root included, into `out` [r]: those of the shape that `choose` has just found."""
        count = len(out)
        kept, ones, counts = self._kept[:count], self._ones[:count], self._counts[:count]
        np.greater_equal(self._sorted[:count], self._least, out=kept)
        kept[chosen.drafting :] = False
        kept[:, chosen.depth :] = False
        np.copyto(ones, kept)  # a ufunc that casts would make buffers
        np.add.reduce(ones, axis=1, out=counts)
        surplus = int(counts.sum()) - chosen.nodes  # nodes as likely as the last one
        row = chosen.drafting - 1
        while surplus > 0 and row >= 0:
            if counts[row] and self._sorted[row, counts[row] - 1] <= self._least:
                counts[row] -= 1
                surplus -= 1
            else:
                row -= 1
        counts += 1
        out[self.order[:count]] = counts

    def _view(self, count: int) -> _Views:
        depths, deep = len(self.depths), self._deepest
        tried = range(1, count + 1) if count <= _FEW else sorted({max(1, round(share * count)) for share in _SHARES})
        options = np.array(tried, dtype=np.int64)
        by_depth = np.arange(deep) < np.array(self.depths)[:, None]  # [depths, deepest]
        by_rows = np.arange(count) < options[:, None]  # [o, count]
        shape = depths, len(options), count * deep

        def of(values: Doubles, shape: tuple[int, ...]) -> Doubles:
            return values[: int(np.prod(shape))].reshape(shape)

        views = self._views[count] = _Views(
            options=options,
            allowed=(by_depth[:, None, None, :] & by_rows[None, :, :, None]) * np.float64(-1.0),
            lanes=of(self._lanes, shape),
            sums=of(self._sums, shape),
            seconds=of(self._seconds, shape),
            speeds=of(self._speeds, shape),
            lengths=of(self._lengths, (depths, count * deep)),
            places=self._places[: depths * count * deep].reshape(depths, count * deep),
            passes=of(self._passes, (depths, count * deep)),
            extra=np.zeros((depths, len(options))),
        )
        return views

    def _weighed(self, survivals: Doubles) -> Doubles:
        """[r, deepest] what each node adds to the objective; never more than its parent."""
        if self._objective is Objective.GOODPUT:
            return survivals
        values = self._values[: len(survivals)]
        np.add.accumulate(survivals, axis=1, out=values)
        values += 1.0
        np.log(values, out=values)
        for depth in range(self._deepest - 1, 0, -1):
            values[:, depth] -= values[:, depth - 1]
        return values

    def _sort(self, values: Doubles, count: int) -> None:
        """Orders rows by what all their nodes, values [r, deepest], add; the best first."""
        keys, totals, order = self._keys[:count], self._totals[:count], self.order[:count]
        np.add.reduce(values, axis=1, out=totals)
        totals *= -float(1 << 30)
        np.copyto(keys, totals, casting="unsafe")
        np.left_shift(keys, _SHIFT, out=keys)
        keys += self._indices[:count]
        keys.sort()
        np.bitwise_and(keys, (1 << _SHIFT) - 1, out=order)
        np.take(values, order, axis=0, out=self._sorted[:count], mode="clip")

    def _price(self, views: _Views, rows: int, table: Doubles, draft: Doubles, reach: Doubles) -> None:
        """Sets the seconds of every depth, number of drafting rows and number of nodes."""
        lengths = views.lengths
        np.multiply(self._counting[: lengths.shape[1]], reach[:, None], out=lengths)
        lengths += rows
        np.rint(lengths, out=lengths)
        np.copyto(views.places, lengths, casting="unsafe")
        np.take(table, views.places, out=views.passes, mode="clip")
        np.take(draft, views.options, axis=1, out=views.extra, mode="clip")
        np.add(views.passes[:, None, :], views.extra[:, :, None], out=views.seconds)

    def _charge(self, views: _Views, joining: Doubles) -> None:
        """Adds what rows cost before they can draft."""
        totals = self._totals[: len(joining)]
        np.take(joining, self.order[: len(joining)], out=totals, mode="clip")
        np.add.accumulate(totals, out=totals)
        for option, drafting in enumerate(views.options.tolist()):
            views.seconds[:, option] += totals[drafting - 1]

    def _best(self, views: _Views, rows: int, pair: float) -> Chosen:
        lanes, sums, seconds, speeds = views.lanes, views.sums, views.seconds, views.speeds
        if self._objective is Objective.GOODPUT:
            np.subtract(rows, sums, out=sums)  # expected tokens
            if pair:
                np.multiply(sums, pair, out=speeds)
                seconds += speeds
            np.divide(sums, seconds, out=speeds)
        else:
            seconds += rows * pair
            np.log(seconds, out=speeds)
            speeds *= -rows
            speeds -= sums
        depth, rest = divmod(int(speeds.argmax()), lanes.shape[1] * lanes.shape[2])
        option, last = divmod(rest, lanes.shape[2])
        self._least = -float(lanes[depth, option, last])
        tokens = float(sums[depth, option, last])
        if self._objective is Objective.LATENCY:
            tokens = rows * math.exp(-tokens / rows)
        seconds_ = float(seconds[depth, option, last])
        return Chosen(self.depths[depth], last + 1, int(views.options[option]), tokens, seconds_)

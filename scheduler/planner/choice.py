"""The shape with the most expected tokens a second, for a whole batch at once.

A step commits one token of each row, and every drafted node with the chance that it survives. For a given depth and a
given set of drafting rows, the best n nodes of the batch are the n that survive most likely; since a child never
survives more often than its parent, they always form chains from the roots. So the optimum is found by sorting all
nodes once and reading the costs off the table for every n: the table may rise in any steps, and no local optimum can
stop the search. Depths and numbers of drafting rows are tried side by side as one array.

Called by `goodput` for each decode step. All arrays are kept.
"""

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np

from aerie.contracts.step import Bools, Ints, Longs
from aerie.scheduler.planner.regression import Doubles

_FEW = 8
"""Up to so many rows, every number of drafting rows is tried; beyond, shares of all rows."""
_SHARES = (1.0, 0.75, 0.5, 0.25)


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
    allowed: Bools
    """[depths, o, rows * deepest] nodes, sorted by value, that a depth and a number of rows allow."""
    by_depth: Bools
    """[depths, 1, rows * deepest]"""
    by_rows: Bools
    """[1, o, rows * deepest]"""
    sums: Doubles
    """[depths, o, rows * deepest], as counts, seconds and speeds."""
    counts: Longs
    seconds: Doubles
    speeds: Doubles
    passes: Doubles
    """[depths, 1 + rows * deepest] seconds of so many nodes; infinite for none."""
    starts: Longs
    """[depths, 1, 1] where a depth begins in `passes`."""
    extra: Doubles
    """[depths, o]"""


class ChainChoice:
    """Finds the best chains for up to `rows` rows and the given depths, ascending."""

    def __init__(self, rows: int, depths: tuple[int, ...], objective: Objective = Objective.GOODPUT) -> None:
        self.depths = depths
        self.order: Longs = np.zeros(rows, dtype=np.int64)
        """Indices of the rows of the last choice, the best first."""
        self._objective = objective
        self._deepest = deepest = depths[-1]
        self._bounds: Longs = np.array(depths)[:, None, None]
        cells = len(depths) * max(len(_SHARES), min(rows, _FEW)) * rows * deepest
        self._sums, self._seconds, self._speeds = (np.zeros(cells) for _ in range(3))
        self._counts: Longs = np.zeros(cells, dtype=np.int64)
        self._allowed: Bools = np.zeros(cells, dtype=np.bool_)
        self._passes = np.zeros(len(depths) * (1 + rows * deepest))
        self._counting = np.arange(1 + rows * deepest, dtype=np.float64)
        self._values, self._sorted = (np.zeros((rows, deepest)) for _ in range(2))
        self._totals = np.zeros(rows)
        self._ranks: Longs = np.zeros(0, dtype=np.int64)
        """The row of each node of the last choice, by its place in `order`; the nodes sorted by value."""
        self._taken: Bools = np.zeros(0, dtype=np.bool_)
        """The nodes of the shape that was found."""
        self._views: dict[int, _Views] = {}

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
        values = self._weighed(survivals)
        order, totals = self.order[:count], self._totals[:count]
        np.add.reduce(values, axis=1, out=totals)
        np.negative(totals, out=totals)
        order[:] = totals.argsort(kind="stable")
        ranked = self._sorted[:count]
        np.take(values, order, axis=0, out=ranked, mode="clip")
        flat = ranked.reshape(-1)
        best = (-flat).argsort(kind="stable")  # among equal values of a row, parents stay first
        self._ranks, depths = np.divmod(best, self._deepest)
        np.less(depths, self._bounds, out=views.by_depth)
        np.less(self._ranks, views.options[:, None], out=views.by_rows[0])
        np.logical_and(views.by_depth, views.by_rows, out=views.allowed)
        np.multiply(views.allowed, flat[best], out=views.speeds)
        np.add.accumulate(views.speeds, axis=2, out=views.sums)
        np.add.accumulate(views.allowed, axis=2, out=views.counts, dtype=np.int64)
        self._price(views, rows, table, draft, reach)
        if joining is not None:
            self._charge(views, joining)
        return self._best(views, rows, pair)

    def nodes(self, chosen: Chosen, out: Ints) -> None:
        """Writes each row's nodes, root included, into `out` [r]: those of the shape that `choose` has just found."""
        ranks = self._ranks[: len(self._taken)][self._taken]
        out[self.order[: len(out)]] = 1 + np.bincount(ranks, minlength=len(out))

    def _view(self, count: int) -> _Views:
        depths, nodes = len(self.depths), count * self._deepest
        tried = range(1, count + 1) if count <= _FEW else sorted({max(1, round(share * count)) for share in _SHARES})
        shape = depths, len(tried), nodes
        cells = int(np.prod(shape))
        views = self._views[count] = _Views(
            options=np.array(tried, dtype=np.int64),
            allowed=self._allowed[:cells].reshape(shape),
            by_depth=np.zeros((depths, 1, nodes), dtype=np.bool_),
            by_rows=np.zeros((1, len(tried), nodes), dtype=np.bool_),
            sums=self._sums[:cells].reshape(shape),
            counts=self._counts[:cells].reshape(shape),
            seconds=self._seconds[:cells].reshape(shape),
            speeds=self._speeds[:cells].reshape(shape),
            passes=self._passes[: depths * (1 + nodes)].reshape(depths, 1 + nodes),
            starts=(np.arange(depths, dtype=np.int64) * (1 + nodes))[:, None, None],
            extra=np.zeros((depths, len(tried))),
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

    def _price(self, views: _Views, rows: int, table: Doubles, draft: Doubles, reach: Doubles) -> None:
        """Sets the seconds of every depth, number of drafting rows and number of nodes."""
        passes = views.passes
        lengths = np.rint(self._counting[: passes.shape[1]] * reach[:, None] + rows).astype(np.int64)
        np.take(table, lengths, out=passes, mode="clip")
        passes[:, 0] = math.inf
        views.counts[:] += views.starts
        np.take(passes.reshape(-1), views.counts, out=views.seconds, mode="clip")
        np.take(draft, views.options, axis=1, out=views.extra, mode="clip")
        np.add(views.seconds, views.extra[:, :, None], out=views.seconds)

    def _charge(self, views: _Views, joining: Doubles) -> None:
        """Adds what rows cost before they can draft."""
        totals = np.add.accumulate(joining[self.order[: len(joining)]])
        for option, drafting in enumerate(views.options.tolist()):
            views.seconds[:, option] += totals[drafting - 1]

    def _best(self, views: _Views, rows: int, pair: float) -> Chosen:
        sums, seconds, speeds = views.sums, views.seconds, views.speeds
        if self._objective is Objective.GOODPUT:
            sums += rows  # expected tokens
            if pair:
                np.multiply(sums, pair, out=speeds)
                seconds += speeds
            np.divide(sums, seconds, out=speeds)
        else:
            seconds += rows * pair
            np.log(seconds, out=speeds)
            speeds *= -rows
            speeds += sums
        depth, rest = divmod(int(speeds.argmax()), sums.shape[1] * sums.shape[2])
        option, last = divmod(rest, sums.shape[2])
        tokens = float(sums[depth, option, last])
        if self._objective is Objective.LATENCY:
            tokens = rows * math.exp(tokens / rows)
        self._taken = views.allowed[depth, option, : last + 1]
        nodes = int(views.counts[depth, option, last]) - int(views.starts[depth, 0, 0])
        seconds_ = float(seconds[depth, option, last])
        return Chosen(self.depths[depth], nodes, int(views.options[option]), tokens, seconds_)

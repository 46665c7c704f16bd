"""The shape with the most expected tokens a second, for a whole batch at once.

A step commits one token of each row, and every drafted node with the chance that it survives. For a given depth and a
given set of drafting rows, the best n nodes of the batch are the n that survive most likely; since a child never
survives more often than its parent, they always form chains from the roots. So the optimum is found by sorting all
nodes once and reading the costs off the table for every n: the table may rise in any steps, and no local optimum can
stop the search. A node of which a head may be unsure is not always verified, and counts for less than one in the costs.
Depths and numbers of drafting rows are tried side by side, one after the other in one array: a *part* for each pair,
with as many cells as it has nodes.

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
_UNIT = 2.0**-34
"""Values are multiples of it, so that their sums are exact in any order, and equal ones stay equal."""
_KEPT_LAYOUTS = 16
"""Numbers of rows whose layouts are kept."""


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


class _Layout:
    """Where the parts of a choice among `count` rows lie, and the arrays that it fills."""

    def __init__(self, count: int, depths: tuple[int, ...]) -> None:
        tried = range(1, count + 1) if count <= _FEW else sorted({max(1, round(share * count)) for share in _SHARES})
        deepest, nodes, tried_ = depths[-1], count * depths[-1], list(tried)
        ranks, levels = np.divmod(np.arange(nodes), deepest)  # [nodes] each, of the nodes in the order of their rows
        parts = [(depth, drafting) for depth in depths for drafting in tried_]
        sizes = np.array([depth * drafting for depth, drafting in parts])
        self.parts = parts
        self.options: Longs = np.array(tried_, dtype=np.int64)
        self.members: Bools = np.array([(levels < depth) & (ranks < drafting) for depth, drafting in parts])
        """[parts, nodes] nodes that a part allows, in the order of their rows."""
        self.ends: Longs = np.cumsum(sizes)
        """[parts] the number of cells up to the end of each."""
        self.last: Longs = self.ends[:-1] - 1
        self.part: Longs = np.repeat(np.arange(len(parts)), sizes)
        """[cells] index of the part, as the next two."""
        self.base: Longs = self.part * nodes
        self.lengths: Longs = np.zeros(len(self.part), dtype=np.int64)
        self.allowed: Bools = np.zeros_like(self.members)
        """[parts, nodes] the same as `members`, in the order of their values."""
        self.sums, self.seconds, self.speeds = np.zeros((3, len(self.part)))
        self.earlier = np.zeros(len(parts))
        self.extra = np.zeros((len(depths), len(tried_)))


class ChainChoice:
    """Finds the best chains for up to `rows` rows and the given depths, ascending."""

    def __init__(self, rows: int, depths: tuple[int, ...], objective: Objective = Objective.GOODPUT) -> None:
        self.depths = depths
        self._order: Longs = np.zeros(rows, dtype=np.int64)
        """Indices of the rows of the last choice, the best first."""
        self._objective = objective
        self._deepest = depths[-1]
        self._values, self._sorted = np.zeros((2, rows, self._deepest))
        self._totals = np.zeros(rows)
        self._flat = np.zeros(rows * self._deepest)
        self._weights, self._sorted_weights = np.zeros((rows, self._deepest)), np.zeros(rows * self._deepest)
        """What each node counts for in the costs; negative, as the values in `_flat`."""
        self._taken: Longs = np.zeros(0, dtype=np.int64)
        """Nodes of the shape that was found, by the places of their rows in `_order`."""
        self._layouts: dict[int, _Layout] = {}

    def choose(self, survivals: Doubles, rows: int, table: Doubles, draft: Doubles, *, spared: Doubles) -> Chosen:
        """The best shape that drafts at all, for `rows` rows of which those of `survivals` [r, deepest] may draft.

        `table` [> rows + r * deepest]: seconds of a step over so many nodes, drafting aside. `draft` [depths, r + 1]:
        seconds of drafting for so many rows. `spared` [deepest]: of the planned nodes that would not be accepted, so
        many are never verified.
        """
        layout = self._layout(len(survivals))
        best = self._ranked(survivals)
        layout.members.take(best, axis=1, out=layout.allowed, mode="clip")
        places = layout.allowed.reshape(-1).nonzero()[0]  # [cells]
        places -= layout.base
        self._weigh(survivals, spared, best)
        self._price(layout, rows, places, table, draft)
        self._sum(layout, self._flat, places)
        cell = self._best(layout, rows)
        part = int(layout.part[cell])
        first = int(layout.ends[part - 1]) if part else 0
        self._taken = best[places[first : cell + 1]] // self._deepest
        depth, drafting = layout.parts[part]
        tokens = float(layout.sums[cell])
        if self._objective is Objective.LATENCY:
            tokens = rows * math.exp(tokens / rows)
        return Chosen(depth, cell + 1 - first, drafting, tokens, float(layout.seconds[cell]))

    def nodes(self, out: Ints) -> None:
        """Writes each row's nodes, root included, into `out` [r]: those of the shape that `choose` has just found."""
        out[self._order[: len(out)]] = 1 + np.bincount(self._taken, minlength=len(out))

    def _layout(self, count: int) -> _Layout:
        layout = self._layouts.pop(count, None) or _Layout(count, self.depths)
        if len(self._layouts) == _KEPT_LAYOUTS:
            del self._layouts[next(iter(self._layouts))]  # the one that was not used for the longest time
        self._layouts[count] = layout
        return layout

    def _ranked(self, survivals: Doubles) -> Longs:
        """[nodes] numbers of the nodes, the best first, their values being in `_flat`. Nodes are numbered in the order
        of their rows, which is in `_order`.
        """
        count = len(survivals)
        values = self._weighed(survivals)
        order, totals = self._order[:count], self._totals[:count]
        np.add.reduce(values, axis=1, out=totals)
        np.negative(totals, out=totals)
        order[:] = totals.argsort(kind="stable")
        ranked = self._sorted[:count]
        values.take(order, axis=0, out=ranked, mode="clip")
        np.negative(ranked, out=ranked)
        best = ranked.reshape(-1).argsort(kind="stable")  # among equal values of a row, parents stay first
        ranked.reshape(-1).take(best, out=self._flat[: len(best)], mode="clip")
        return best

    def _weighed(self, survivals: Doubles) -> Doubles:
        """[r, deepest] what each node adds to the objective; never more than its parent."""
        values = self._values[: len(survivals)]
        if self._objective is Objective.GOODPUT:
            np.multiply(survivals, 1.0 / _UNIT, out=values)
        else:
            np.add.accumulate(survivals, axis=1, out=values)
            values += 1.0
            np.log(values, out=values)
            for depth in range(self._deepest - 1, 0, -1):
                values[:, depth] -= values[:, depth - 1]
            values *= 1.0 / _UNIT
        np.rint(values, out=values)
        values *= _UNIT
        return values

    def _weigh(self, survivals: Doubles, spared: Doubles, best: Longs) -> None:
        """Sets what each node counts for, in the order of `best`."""
        count = len(survivals)
        weights = self._weights[:count]
        survivals.take(self._order[:count], axis=0, out=weights, mode="clip")
        np.subtract(1.0, weights, out=weights)
        weights *= spared
        weights -= 1.0
        weights.reshape(-1).take(best, out=self._sorted_weights[: len(best)], mode="clip")

    def _sum(self, layout: _Layout, values: Doubles, places: Longs) -> None:
        """Sets what the `values` of the first nodes of each part add up to, at every cell; they are negative."""
        sums, earlier = layout.sums, layout.earlier
        values.take(places, out=sums, mode="clip")
        np.add.accumulate(sums, out=sums)
        sums.take(layout.last, out=earlier[1:], mode="clip")
        earlier.take(layout.part, out=layout.speeds, mode="clip")
        np.subtract(layout.speeds, sums, out=sums)

    def _price(self, layout: _Layout, rows: int, places: Longs, table: Doubles, draft: Doubles) -> None:
        """Sets the seconds of every cell."""
        self._sum(layout, self._sorted_weights, places)
        verified, lengths = layout.sums, layout.lengths
        verified += rows
        np.rint(verified, out=verified)
        np.copyto(lengths, verified, casting="unsafe")
        table.take(lengths, out=layout.seconds, mode="clip")
        draft.take(layout.options, axis=1, out=layout.extra, mode="clip")
        layout.extra.take(layout.part, out=layout.speeds, mode="clip")
        layout.seconds += layout.speeds

    def _best(self, layout: _Layout, rows: int) -> int:
        """The best cell."""
        sums, seconds, speeds = layout.sums, layout.seconds, layout.speeds
        if self._objective is Objective.GOODPUT:
            sums += rows  # expected tokens
            np.divide(sums, seconds, out=speeds)
        else:
            np.log(seconds, out=speeds)
            speeds *= -rows
            speeds += sums
        return int(speeds.argmax())

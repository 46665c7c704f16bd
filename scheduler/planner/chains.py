"""Prices shapes: the best chains for given survivals, and the trees that a config names, by the costs of steps."""

from collections.abc import Sequence

import numpy as np

from aerie.contracts.shape import DraftShape
from aerie.contracts.step import Ints
from aerie.scheduler.planner.choice import ChainChoice, Chosen, Objective
from aerie.scheduler.planner.costs import StepCosts
from aerie.scheduler.planner.regression import Doubles

SPREAD = 64
"""Steps over which the cost of catching up is spread."""
_MEMORY = 0.98
_PRIOR = 2.0
"""Steps that a level without samples counts for, each of them like the mean of all levels."""
_SIZES = 8


class Chains:
    """For up to `rows` rows and the given depths, ascending."""

    def __init__(self, costs: StepCosts, depths: tuple[int, ...], objective: Objective, *, rows: int) -> None:
        self.depths = depths
        self._costs = costs
        self._choice = ChainChoice(rows, depths, objective)
        self._last = np.array(depths) - 1
        self._by_depth = np.array(depths, dtype=np.float64)
        self._went_on, self._could = np.zeros((_SIZES, depths[-1])), np.zeros((_SIZES, depths[-1]))
        """Decayed counts of steps that drafted a level, and that could have, by the logarithm of the drafting rows."""
        self._reach = np.ones((_SIZES, depths[-1]))
        """Share of the steps that draft each planned level: the device stops where its head is unsure."""
        self._levels = np.arange(1, depths[-1])
        """Beyond the first, which every drafting step drafts."""
        self._draft = np.zeros(len(depths) * (rows + 1))
        self._ramp = np.arange(rows + 1, dtype=np.float64)

    def best(self, chances: Doubles, rows: int, context: float, behind: int) -> Chosen:
        """chances [n, deepest] that the nodes of rows that may draft are accepted."""
        count, costs = len(chances), self._costs
        reached, fixed, each = self._drafting(count, rows, context)
        draft = self._draft[: len(self.depths) * (count + 1)].reshape(len(self.depths), count + 1)
        np.multiply(each[:, None], self._ramp[: count + 1], out=draft)
        draft += fixed[:, None] + self.catching_up(behind) / SPREAD
        table = costs.table(rows, context, min(rows + count * self.depths[-1], costs.most_tokens) + 1)
        return self._choice.choose(chances, rows, table, draft, reach=reached / self._by_depth)

    def of_like(self, chances: Doubles, count: int, rows: int, context: float) -> Chosen:
        """The most tokens a second if `count` of `rows` rows, of the same chances [deepest], all draft to one depth."""
        reached, fixed, each = self._drafting(count, rows, context)
        most = min(rows + count * self.depths[-1], self._costs.most_tokens)
        nodes = np.minimum(np.rint(rows + count * reached), most).astype(np.int64)
        seconds = self._costs.table(rows, context, most + 1)[nodes] + fixed + count * each
        tokens = rows + count * np.add.accumulate(chances)[self._last]
        found = int((tokens / seconds).argmax())
        depth = self.depths[found]
        return Chosen(depth, count * depth, count, float(tokens[found]), float(seconds[found]))

    def nodes(self, out: Ints) -> None:
        """As ChainChoice.nodes: of the shape that `best` has just found."""
        self._choice.nodes(out)

    def of_tree(
        self, shape: DraftShape, tokens: float, count: int, rows: int, context: float, behind: int
    ) -> Chosen | None:
        """What it takes to draft this tree for `count` of `rows` rows, `tokens` being expected; None without room."""
        costs = self._costs
        total = rows + count * (shape.nodes - 1)
        if total > costs.most_tokens:
            return None
        seconds = float(costs.table(rows, context, total + 1)[total])
        seconds += costs.pair * (count * (shape.depth + 1) - (total - rows))  # the head takes one path of each tree
        seconds += costs.draft(shape.depth, count * shape.topk) + count * shape.topk * costs.several(rows, context)
        seconds += self.catching_up(behind) / SPREAD
        return Chosen(shape.depth, count * (shape.nodes - 1), count, tokens, seconds)

    def catching_up(self, behind: int) -> float:
        """Seconds in which heads are extended first."""
        return self._costs.catch_up(behind) if behind else 0.0

    def note_reach(self, planned: Ints, drafted: Ints, rows: Sequence[int]) -> None:
        """Takes in how many levels steps of so many rows planned and drafted, [s] each, in their order."""
        sizes = [_size(one) for one in rows]
        for size in set(sizes):
            own = np.array(sizes) == size
            self._note_reach(size, planned[own], drafted[own])

    def _drafting(self, count: int, rows: int, context: float) -> tuple[Doubles, Doubles, Doubles]:
        """[depths] each: levels that are drafted of so many rows, in the mean; what those take; and what each row adds,
        with the extend of its root and what it adds to the verifying pass.
        """
        reached: Doubles = np.add.accumulate(self._reach[_size(count)])[self._last]
        fixed, first, level, node = self._costs.draft_rates()
        passes = np.maximum(reached - 1.0, 0.0)
        each = first + self._costs.pair + self._costs.several(rows, context)
        return reached, fixed + level * passes, each + node * passes

    def _note_reach(self, size: int, planned: Ints, drafted: Ints) -> None:
        count = len(planned)
        went_on, could = self._went_on[size], self._could[size]  # [deepest] each
        weights = _MEMORY ** np.arange(count - 1, -1, -1.0)  # [s]
        could_reach = np.minimum(planned, drafted + 1)[:, None] > self._levels  # [s, deepest - 1]
        for counts, reached in ((went_on, drafted[:, None] > self._levels), (could, could_reach)):
            counts *= _MEMORY**count
            counts[1:] += weights @ reached
        mean = (float(went_on.sum()) + _PRIOR) / (float(could.sum()) + _PRIOR)
        chances = (went_on + _PRIOR * mean) / (could + _PRIOR)
        chances[0] = 1.0
        np.multiply.accumulate(chances, out=self._reach[size])


def _size(rows: int) -> int:
    return min(rows.bit_length(), _SIZES - 1)

"""Prices shapes: the best chains for given survivals, and the trees that a config names, by the costs of steps."""

from collections.abc import Sequence

import numpy as np

from aerie.contracts.shape import DraftShape
from aerie.contracts.step import Ints
from aerie.scheduler.planner.accepted import Labels, levels_of
from aerie.scheduler.planner.choice import ChainChoice, Chosen, Objective
from aerie.scheduler.planner.costs import StepCosts
from aerie.scheduler.planner.reach import Doubts, Reach
from aerie.scheduler.planner.regression import Doubles
from aerie.scheduler.planner.samples import Drafts

SPREAD = 64
"""Steps over which the cost of catching up is spread."""


class Chains:
    """For up to `rows` rows and the given depths, ascending."""

    def __init__(
        self, costs: StepCosts, depths: tuple[int, ...], objective: Objective, *, rows: int, unsure: bool = False
    ) -> None:
        """`unsure`: whether heads may end chains."""
        self.depths = depths
        self._costs = costs
        self._choice = ChainChoice(rows, depths, objective)
        self._last = np.array(depths) - 1
        self._levels = Reach(depths[-1])
        """Levels of a step that are drafted: until the head is unsure of all rows."""
        self._doubts = Doubts(depths[-1], unsure=unsure)
        self._draft = np.zeros(len(depths) * (rows + 1))
        self._ramp = np.arange(rows + 1, dtype=np.float64)

    def best(self, chances: Doubles, rows: int, context: float, behind: int) -> Chosen:
        """chances [n, deepest] that the nodes of rows that may draft are accepted."""
        count, costs = len(chances), self._costs
        fixed, each = self._drafting(count, rows, context)
        draft = self._draft[: len(self.depths) * (count + 1)].reshape(len(self.depths), count + 1)
        np.multiply(each[:, None], self._ramp[: count + 1], out=draft)
        draft += fixed[:, None] + self.catching_up(behind) / SPREAD
        table = costs.table(rows, context, min(rows + count * self.depths[-1], costs.most_tokens) + 1)
        return self._choice.choose(chances, rows, table, draft, spared=self._doubts.spared)

    def of_like(self, chances: Doubles, count: int, rows: int, context: float) -> Chosen:
        """The most tokens a second if `count` of `rows` rows, of the same chances [deepest], all draft to one depth."""
        fixed, each = self._drafting(count, rows, context)
        verified = np.add.accumulate(1.0 - self._doubts.spared * (1.0 - chances))[self._last]  # nodes of a row
        most = min(rows + count * self.depths[-1], self._costs.most_tokens)
        nodes = np.minimum(np.rint(rows + count * verified), most).astype(np.int64)
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

    def note_reach(self, drafts: Sequence[Drafts], labels: Labels) -> None:
        """Takes in how far the chains of these steps have come, and those of each row."""
        rows = [len(one.places) for one in drafts]
        self._levels.note(*levels_of(drafts), rows)
        self._doubts.note(labels, len(drafts))

    def _drafting(self, count: int, rows: int, context: float) -> tuple[Doubles, Doubles]:
        """[depths] each: what drafting for so many rows takes; and what each row adds, with the extend of its root and
        what it adds to the verifying pass.
        """
        passes = np.maximum(self._levels.levels(count)[self._last] - 1.0, 0.0)
        fixed, first, level, node = self._costs.draft_rates()
        each = first + self._costs.pair + self._costs.several(rows, context)
        return fixed + level * passes, each + node * passes

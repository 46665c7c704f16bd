"""The shapes that compete for a step: the best chains for what is expected of its rows, the config's trees, and what
would be best if its rows were luckier.

Used by `goodput`.
"""

from dataclasses import dataclass

import numpy as np

from aerie.contracts.shape import DraftShape
from aerie.contracts.step import Bools, Ints, Longs
from aerie.scheduler.planner.chains import Chains
from aerie.scheduler.planner.choice import Chosen
from aerie.scheduler.planner.regression import Doubles
from aerie.scheduler.planner.survival import Survival
from aerie.scheduler.planner.trials import LUCK, TRIED

_FEW = 8
"""Rows that are tried for luck at once: those of which the least is known."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of a step."""

    headed: Longs
    """[h] rows that may draft."""
    places: Longs
    """[h] theirs in the statistics."""
    most: Ints
    """[h] the most nodes beyond the root that each of them can use."""
    rows: int
    context: int
    """Tokens that all rows hold."""
    behind: int = 0
    """Tokens with which heads must first be extended."""
    last: bool = False
    """Whether some row could not come back after one more step at rest."""


class Candidates:
    """For up to `rows` rows."""

    def __init__(self, chains: Chains, survival: Survival, trees: list[DraftShape], *, rows: int) -> None:
        self._chains = chains
        self._survival = survival
        self._trees = trees
        self.chains_only = not trees
        """Whether nothing drafts more than the deepest chains."""
        self._deepest = deepest = chains.depths[-1]
        self._allowed: Bools = np.zeros((rows, deepest), dtype=np.bool_)
        self._chances = np.zeros((rows, deepest))
        self._lucky = np.zeros((rows, deepest))
        self._own, self._unknown = np.zeros((2, 0))
        """Offsets of the rows of the last choice, and the standard deviations of what is not known of them."""
        self._steps: Ints = np.arange(deepest, dtype=np.int32)

    def best(self, batch: Batch) -> tuple[Chosen, DraftShape]:
        """The best shape that drafts at all."""
        self._own, self._unknown = self._survival.offsets.current(batch.places)
        chances = self._masked(batch, self._own, self._chances)
        chosen = self._chains.best(chances, batch.rows, batch.context, batch.behind)
        shape = DraftShape(chosen.depth, 1, chosen.depth + 1)
        for family, tree in enumerate(self._trees, start=1):
            expected = batch.rows + float(self._survival.survivals(batch.places, family, tree.depth, self._own).sum())
            value = self._chains.of_tree(tree, expected, len(batch.headed), batch.rows, batch.context, batch.behind)
            if value is not None and value.tokens / value.seconds > chosen.tokens / chosen.seconds:
                chosen, shape = value, tree
        return chosen, shape

    def lucky(self, batch: Batch) -> tuple[Chosen, Ints]:
        """The best chains if the rows of which the least is known were better than expected, by what is not known of
        them, and the nodes [h] of each row, root included. Call it after `best`.
        """
        few = self._unknown.argsort()[-_FEW:]
        some = Batch(batch.headed[few], batch.places[few], batch.most[few], batch.rows, batch.context, batch.behind)
        chances = self._masked(some, self._own[few] + LUCK * self._unknown[few], self._lucky)
        chosen = self._chains.best(chances, batch.rows, batch.context, batch.behind)
        nodes, own = np.ones(len(batch.headed), dtype=np.int32), np.ones(len(few), dtype=np.int32)
        self._chains.nodes(own)
        nodes[few] = own
        return chosen, nodes

    def nodes(self, chosen: Chosen, shape: DraftShape, batch: Batch) -> Ints:
        """[h] nodes of each row, root included: of what `best` has just found."""
        if shape.topk > 1:
            return np.minimum(batch.most + 1, np.int32(shape.nodes))
        nodes = np.ones(len(batch.headed), dtype=np.int32)
        self._chains.nodes(nodes)
        return nodes

    def shallow(self, nodes: Ints, batch: Batch) -> Chosen | None:
        """What the chains of a trial, of at most two `nodes` [h] each, commit by what is expected, and take; None
        without room. Call it after `best`.
        """
        count, rows = int(np.count_nonzero(nodes > 1)), batch.rows
        tokens = rows + float(self._chances[: len(nodes), 0][nodes > 1].sum())
        return self._chains.of_tree(TRIED, tokens, count, rows, batch.context, batch.behind)

    def _masked(self, batch: Batch, own: Doubles, out: Doubles) -> Doubles:
        """[h, deepest] chances of the nodes that the rows, of the offsets `own` [h], can use."""
        count = len(batch.headed)
        chances = self._survival.survivals(batch.places, 0, self._deepest, own, out=out[:count])
        if int(batch.most.min()) < self._deepest:
            chances *= np.less(self._steps, batch.most[:, None], out=self._allowed[:count])
        return chances

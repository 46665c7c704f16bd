"""The best choice of each step in hindsight, for replays: a bound for every planner."""

import numpy as np

from aerie.contracts.shape import NO_DRAFT, DraftShape
from aerie.contracts.step import Ints, Longs
from aerie.probe.replay import ReplayLane
from aerie.scheduler.planner.goodput import Goodput
from aerie.scheduler.planner.keeping import Asked


class Hindsight(Goodput):
    """Knows what each draft will be accepted to, and takes the best step by the lane's own costs."""

    lane: ReplayLane
    trees: tuple[DraftShape, ...] = ()

    def pays(self, asked: Asked, *, headed: int) -> bool:
        return True

    def rests(self, headed: Longs, rows: int) -> bool:
        return False

    def decide(
        self, headed: Longs, most: Ints, rows: int, context: int, behind: int, *, last: bool = False
    ) -> tuple[DraftShape, Ints]:
        nodes = np.ones(len(headed), dtype=np.int32)
        reach = np.minimum(self.lane.acceptance(headed), most)
        chances = (np.arange(self.chains.depths[-1]) < reach[:, None]).astype(np.float64)
        shape, speed = NO_DRAFT, rows / self.costs.plain(rows, context)
        if chances.any():
            chosen = self.chains.best(chances, rows, context, behind)
            if chosen.tokens / chosen.seconds > speed:
                speed = chosen.tokens / chosen.seconds
                self.chains.nodes(nodes)
                shape = DraftShape(int(nodes.max()) - 1, 1, int(nodes.max()))
        for tree in self.trees if len(headed) else ():
            tokens = rows + float(np.minimum(self.lane.acceptance(headed, tree), most).sum())
            value = self.chains.of_tree(tree, tokens, len(headed), rows, context, behind)
            if value is not None and tokens / value.seconds > speed:
                shape, speed = tree, tokens / value.seconds
                nodes = np.minimum(most + 1, tree.nodes).astype(np.int32)
        return shape, nodes

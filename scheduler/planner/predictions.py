"""What a step takes and gains by all that is known: by its costs, as `guard` corrects them.

Used by `goodput` and `keeping`.
"""

from aerie.scheduler.planner.choice import Chosen
from aerie.scheduler.planner.costs import StepCosts
from aerie.scheduler.planner.guard import Guard

MARGIN = 0.02
"""What a draft must promise beyond plain decoding while nothing is drafted, and what head KV must beyond its cost."""


class Predictions:
    def __init__(self, costs: StepCosts, guard: Guard) -> None:
        self.guard = guard
        self._costs = costs

    def plain(self, rows: int, context: float) -> float:
        """Seconds of a step that drafts nothing."""
        return self.guard.corrected(self._costs.plain(rows, context), rows, drafts=False)

    def seconds(self, chosen: Chosen, rows: int) -> float:
        return self.guard.corrected(chosen.seconds, rows, drafts=True)

    def gain(self, chosen: Chosen, rows: int, plain: float) -> float:
        """Expected tokens a second over those of plain steps, which take `plain` seconds."""
        return chosen.tokens * plain / (rows * self.seconds(chosen, rows))

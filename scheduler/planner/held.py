"""A choice that holds for some steps.

Used by `goodput`. A choice costs a good part of what a step of a small model takes, so one is held while the same rows
run, and the longer the more often it was made again.
"""

import math
from dataclasses import dataclass

import numpy as np

from aerie.contracts.step import Ints, Longs
from aerie.scheduler.planner.samples import Planned

HOLD, HELD = 4, 32
"""Steps for which a new choice holds while the same rows run; twice as long each time that it is chosen again, up to
HELD.
"""
SURPRISE = 2.0
"""Standard deviations of the committed tokens, about, at which a choice ends early."""


@dataclass(slots=True)
class Held:
    planned: Planned
    headed: Longs
    """[h] rows that may draft."""
    nodes: Ints
    """[h]"""
    length: int
    """Steps for which it was to hold."""
    left: int = 0
    """Steps for which it still holds."""
    settled: int = 0
    above: float = 0.0
    """Tokens that its settled steps committed beyond those expected."""

    def holds(self, headed: Longs, rows: int) -> bool:
        """Whether it still holds for a step of `rows` rows of which the `headed` ones may draft."""
        return self.left > 0 and self.planned.rows == rows and np.array_equal(self.headed, headed)

    def after(self, last: "Held | None") -> "Held":
        """Holds longer if the last choice was alike."""
        if last is not None and self.length == HOLD and last.planned.shape.drafts == self.planned.shape.drafts:
            self.length = min(2 * last.length, HELD)
        self.left = self.length
        return self

    def surprised(self, tokens: int) -> bool:
        """Takes in the tokens of a settled step; whether its steps are far from what was expected."""
        if not self.planned.shape.drafts:
            return False
        self.settled += 1
        self.above += tokens - self.planned.tokens
        drafted = self.planned.tokens - self.planned.rows
        return abs(self.above) > 1.0 + SURPRISE * math.sqrt(self.settled * (drafted + 0.5))

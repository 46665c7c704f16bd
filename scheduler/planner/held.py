"""A choice that holds for some steps.

Used by `goodput`. A choice costs a good part of what a step of a small model takes, so one is held while the same rows
run, and the longer the more often it was made again. To draft nothing suits any rows, so it holds for a few steps
whoever comes or leaves: else each of many short answers would cost a choice.
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
    age: int = 0
    """Steps for which it has held."""
    settled: int = 0
    above: float = 0.0
    """Tokens that its settled steps committed beyond those expected."""

    def holds(self, headed: Longs, rows: int) -> bool:
        """Whether it still holds for a step of `rows` rows of which the `headed` ones may draft."""
        return self.left > 0 and self.planned.rows == rows and np.array_equal(self.headed, headed)

    def rests(self, headed: Longs, rows: int) -> bool:
        """Whether nothing is drafted by it in a step of such rows."""
        if self.left <= 0 or self.planned.shape.drafts:
            return False
        no_head = not len(headed) and not len(self.headed)
        return no_head or self.age < HOLD or self.holds(headed, rows)

    def hurry(self) -> None:
        """A row has come that may draft: it is to wait for few steps."""
        self.left = min(self.left, max(HOLD - self.age, 0))

    def step(self) -> None:
        """One more step by it."""
        self.left -= 1
        self.age += 1

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

"""A choice that holds for some steps.

Used by `goodput`. A choice costs a good part of what a step of a small model takes, so one is held while the same rows
run, and the longer the more often it was made again. But which rows accept much changes within a few steps, so choices
of steps that take long, beside which another is soon made, are held for few. A choice holds for a few steps whoever
comes or leaves: else each of many short answers would cost two. Once it is made again after a row has come, it holds
for long at once.
"""

import math
from dataclasses import dataclass, field, replace

from aerie.contracts.step import Ints, Longs
from aerie.scheduler.planner.samples import Planned

HOLD, HELD = 4, 32
"""Steps for which a first choice holds while the same rows run; twice as long each time that it is chosen again, up to
HELD.
"""
HELD_SECONDS = 0.06
"""A choice to draft holds no longer than this, or for HOLD steps: then it takes the host a few percent of the time. Of
the best 3 of 6 nodes a row, choices with what was known 32 steps before found 0 to 7 % more accepted than 3 of each row
have, with what was known 4 steps before 6 to 10 %: chains of 6 of the demo's pair, 4 and 16 rows.
"""
REST = 16
"""Steps for which a choice to draft nothing holds for about as many rows, whoever leaves or comes without a head:
meanwhile nothing is learned that could change it. It holds for HOLD steps for any number, and for twice as long where
many rows run: the choice and the trial that follow cost the host more.
"""
NO_HEADS = 128
"""Steps for which it holds that no row may draft."""
_MANY, _MOST = 4, 16
"""Rows from which one that comes waits for twice HOLD, and beside so many that draft for four times HOLD: a choice
costs more, and rows come more often.
"""
_NEAR = 4
"""A choice suits a batch that differs by one row, and one more in so many."""
SURPRISE = 2.0
"""Standard deviations of the committed tokens, about, at which a choice ends early."""


def rest(rows: int) -> int:
    """Steps for which so many rows rest by one choice."""
    return REST if rows < _MOST else 2 * REST


@dataclass(slots=True)
class Held:
    planned: Planned
    headed: Longs
    """[h] rows that may draft."""
    nodes: Ints
    """[h]"""
    length: int
    """Steps for which it holds, unless rows come or leave."""
    full: bool = False
    """Whether no shape drafts more."""
    wait: int = 0
    """Steps in which nothing can be drafted but by rows that come: no trial could be paid."""
    left: int = 0
    """Steps for which it still holds."""
    age: int = 0
    """Steps for which it has held."""
    early: bool = False
    """Whether it has ended before its time."""
    settled: int = 0
    above: float = 0.0
    """Tokens that its settled steps committed beyond those expected."""
    usual: int = field(init=False)
    """Nodes of a row that comes."""
    _key: bytes = field(init=False)
    """Of `headed`: to compare bytes takes a tenth of what numpy does."""
    _last: Planned = field(init=False)
    """What was expected of the last step."""

    def __post_init__(self) -> None:
        self.usual = round(float(self.nodes.mean())) if len(self.nodes) else 1
        self._key = self.headed.tobytes()
        self._last = self.planned

    def holds(self, headed: Longs, rows: int) -> bool:
        """Whether it still holds for a step of `rows` rows of which the `headed` ones may draft."""
        return self.left > 0 and self.planned.rows == rows and self._key == headed.tobytes()

    def rests(self, headed: Longs, rows: int) -> bool:
        """Whether nothing is drafted by it in a step of such rows."""
        if self.left <= 0 or self.planned.shape.drafts:
            return False
        no_head = not len(headed) and not len(self.headed)
        return no_head or self.age < (self._rest if self._near(rows) else HOLD) or self.holds(headed, rows)

    def suits(self, headed: Longs, rows: int) -> bool:
        """Whether its drafts will do for few steps of such rows, of which some have come or left since."""
        drafts = self.planned.shape.drafts and len(headed) > 0
        return drafts and self.left > 0 and self.age < self._patience and self._near(rows)

    def planned_for(self, rows: int) -> Planned:
        """What is expected of a step of so many rows."""
        if self._last.rows != rows:
            own = self.planned
            self._last = own if own.rows == rows else replace(own, rows=rows, tokens=own.tokens * rows / own.rows)
        return self._last

    @property
    def ends(self) -> bool:
        """Whether the next step will be another choice's, as far as is known: the last step at rest, or of a draft."""
        rests = not self.planned.shape.drafts and self.age == self._rest
        return self.length > 1 and (self.left == 0 or rests)

    def hurry(self) -> None:
        """A row has come that may draft: it is to wait for few steps."""
        self.left = min(self.left, max(self._patience - self.age, 0))

    @property
    def _rest(self) -> int:
        """Steps for which about as many rows rest by it, whoever leaves or comes without a head."""
        return max(rest(self.planned.rows), self.wait)

    @property
    def _patience(self) -> int:
        """Steps for which rows that come wait, or draft as the others do; half of those for which the choice of these
        holds, if that is more.
        """
        rows, drafts = self.planned.rows, self.planned.shape.drafts
        least = HOLD if rows < _MANY else 4 * HOLD if rows >= _MOST and drafts else 2 * HOLD
        return max(least, self.length // 2) if drafts else least

    def _near(self, rows: int) -> bool:
        return abs(rows - self.planned.rows) <= 1 + self.planned.rows // _NEAR

    def step(self) -> None:
        """One more step by it."""
        self.left -= 1
        self.age += 1

    def after(self, last: "Held | None") -> "Held":
        """Holds for twice as long as the last choice did, or would have but for rows that came, if that was alike. If
        that ended early, it was by chance where the same shape is chosen again, which then holds for half as long.
        """
        shape = self.planned.shape
        if last is not None and HOLD <= self.length <= HELD:
            if not last.early and last.planned.shape.drafts == shape.drafts:
                self.length = min(2 * max(last.age, last.length), self._longest)
            elif last.planned.shape == shape:
                self.length = max(last.length // 2, self.length)
        self.left = self.length
        return self

    @property
    def _longest(self) -> int:
        """The most steps for which it holds."""
        seconds = self.planned.seconds
        if not self.planned.shape.drafts or not seconds * HELD > HELD_SECONDS:
            return HELD
        return max(int(HELD_SECONDS / seconds), HOLD)

    def end(self) -> None:
        """It ends early."""
        self.early, self.left = True, 0

    def surprised(self, tokens: int) -> bool:
        """Takes in the tokens of a settled step; whether its steps are far from what was expected, and a new choice
        could make something of that.
        """
        if not self.planned.shape.drafts:
            return False
        self.settled += 1
        self.above += tokens - self.planned.tokens
        drafted = self.planned.tokens - self.planned.rows
        far = 1.0 + SURPRISE * math.sqrt(self.settled * (drafted + 0.5))
        return self.above < -far or (self.above > far and not self.full)

"""When a draft is tried that is not expected to pay: rarely, and only for what little time all trials may lose.

Used by `goodput`. While nothing is drafted, acceptance is not observed. So the best draft is tried after a while at
rest, and before a row that has rested long loses its head's KV. And rows of which little is known are tried at once if
drafting would pay for luckier rows than the mean one. A trial drafts one level: whether that is accepted says most of
what a deep chain would say, for a fraction of its cost. What a trial really loses is what it takes from the budget, so
a head that is worse than predicted is tried less.

While nothing is drafted, few requests keep the head KV that a trial needs: one at a time, as long as trials show what
is expected. One row's drafts say little among many, so the more nodes trials have lately accepted beyond those
expected, the more requests keep it. That is a cumulative sum, which finds a change soon (Page, 1954).
"""

import math

from aerie.contracts.shape import DraftShape

TRIED = DraftShape(1, 1, 2)
"""The draft of a trial."""
PROBE_STEPS = 16
"""Steps at rest after which the best draft is tried, if the budget allows."""
_LONGEST = 128
"""Steps for which a budget that is too small is trusted to stay so: meanwhile costs are learned."""
SAVED, LEAST_SAVED, CALM = 0.006, 0.002, 512
"""What trials may lose, as a share of the time: after so many steps in which only they have drafted, ever less down to
the least. What has not paid for long changes seldom.
"""
LUCK, LUCKY = 1.0, 1 / 6
"""By so many standard deviations is a lucky row better than the mean one; the share of rows that are."""
KEPT = 4.0
"""Plain steps that the head's KV of a prompt may cost: of a long one, the request may find less in the prefix cache."""
_LEFT = 0.5
"""Plain steps that must be left then for trials of the request's row."""
_START, _LEAST, _MOST = 0.5, -2.0, 8.0
_HEADS, _EACH = 8, 0.5
"""The most requests that keep head KV for trials; one more does for so many nodes that were accepted beyond those
expected.
"""
_CHANCE = 0.1
"""Of each drafted node, so much is expected beyond what is predicted: so luck alone soon adds up to nothing."""
_FIRST = 3.0
"""Plain steps that head KV of the first prompts may cost beside the budget: nothing else tells what a head is worth."""


class Trials:
    def __init__(self) -> None:
        self.since = 0
        """Steps since the last draft."""
        self.budget = _START
        """Plain steps that trials may lose by now."""
        self._beyond = 0.0
        """Nodes that trials have accepted beyond those expected; never below 0, as what was before a change counts for
        nothing.
        """
        self._rest = 0
        """Steps since any but a trial drafted."""
        self._first = _FIRST
        """What is left for the first prompts."""

    def note(self, *, drafts: bool, trial: bool = False, steps: int = 1) -> None:
        """So many steps are planned."""
        self.since = 0 if drafts else self.since + steps
        self._rest = 0 if drafts and not trial else self._rest + steps
        self.budget = min(self.budget + steps * self._saved, _MOST)

    @property
    def _saved(self) -> float:
        """What a step saves for trials."""
        return max(SAVED * CALM / max(CALM, self._rest), LEAST_SAVED)

    def wait(self, lost: float) -> int:
        """Steps without a draft before a trial that is expected to lose so many plain steps could be paid. Soon after
        the last one it is 0: what that has really lost may not be booked yet.
        """
        if self.since < PROBE_STEPS:
            return 0
        return min(max(math.ceil((lost - self.budget) / self._saved), 0), _LONGEST)

    def afford(self, lost: float) -> bool:
        """Pays for a trial that is expected to lose so many plain steps, if it can."""
        if lost > self.budget:
            return False
        self.budget -= max(lost, 0.0)
        return True

    def settle(self, reserved: float, lost: float) -> None:
        """A trial for which so many plain steps were paid has lost so many. One that gained pays for others."""
        self.budget = min(max(self.budget + reserved - lost, _LEAST), _MOST)

    @property
    def heads(self) -> int:
        """Requests that may keep head KV at a time so that it can be tried."""
        return min(1 + int(self._beyond / _EACH), _HEADS)

    def show(self, expected: float, accepted: float, drafted: int) -> bool:
        """A trial has accepted so many of the nodes that it drafted. Whether that is more than was expected."""
        above = accepted - expected
        self._beyond = min(max(self._beyond + above - _CHANCE * drafted, 0.0), _EACH * _HEADS)
        return above > 0.0

    def keep(self, lost: float) -> bool:
        """Pays for the head's KV of a short prompt, if something is left for trials of its row."""
        if lost <= self._first:
            self._first -= lost
            return True
        return lost <= KEPT and lost + _LEFT <= self.budget and self.afford(lost)

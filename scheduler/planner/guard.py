"""Holds the planner to what steps really gave: corrects its predictions, and stops drafting that loses to plain steps.

Used by `goodput`. A model of costs may be wrong in ways that its samples do not show. So for each size of batch the
real seconds of plain and of drafting steps are compared with the predicted ones, and predictions are scaled by the
ratio (`scales`). And an account is kept in units of plain steps: a drafting step pays in what it was ahead of plain
ones, or takes out what it was behind; each plain step pays in a little. Where the account is empty nothing is drafted
but trials. So drafting never loses more than START steps and a share of SAVED of the time, however wrong the
predictions are.

What prompts pay for their head's KV stands in accounts of its own, which drafts must repay: they must bring what that
costs. It is paid at once and comes back later, so drafting goes on while these are empty. One is for all batches, since
a prompt may be read beside few rows and draft beside many; and one for each size, since what many short answers have
not repaid says nothing of one long answer. Either may pay.
"""

import math

from aerie.scheduler.planner.scales import Scales

BUCKETS = 8
START, MOST = 8.0, 16.0
"""Plain steps in a new account, and the most that it holds: past gains cannot pay for long losses."""
SAVED = 0.005
"""What each step without drafts pays in."""
SAVED_KEPT = 0.002
"""The same into the accounts of head KV: what that may cost while nothing is drafted, as a share of the time."""
MOST_KEPT = 32.0
"""Of an account of head KV, either way: many prompts may come at once."""
START_KEPT = 4.0
"""Plain steps in a new account of head KV for one size of batch: of one long prompt, or of some short ones. The one for
all begins with START.
"""
WORST = 1.5
"""No step is behind by more: the rest is a pause of the machine."""


def bucket_of(rows: int) -> int:
    """Batches of 1, 2-3, 4-7, ... rows are of one size."""
    return min(rows.bit_length(), BUCKETS) - 1


class Guard:
    def __init__(self) -> None:
        self._scales = [Scales() for _ in range(BUCKETS)]
        self._accounts = [START] * BUCKETS
        self._kept = START
        self._kept_of = [START_KEPT] * BUCKETS

    def corrected(self, seconds: float, rows: int, *, drafts: bool) -> float:
        return seconds * self._scales[bucket_of(rows)].ratio(drafts=drafts)

    def allows(self, rows: int) -> bool:
        """Whether drafting with so many rows has not lost too much."""
        return self._accounts[bucket_of(rows)] > 0.0

    def keeps(self, rows: int) -> bool:
        """Whether drafts have brought what the head's KV of prompts has cost: all, or that beside so many rows."""
        return self._credit(rows) > 0.0

    def affords(self, rows: int, steps: float) -> bool:
        """Whether head KV may cost so many plain steps of so many rows at once."""
        return self._credit(rows) >= steps

    def keep(self, rows: int, steps: float) -> None:
        """Books head KV that costs so many plain steps of so many rows."""
        self._book(rows, -steps)

    def account(self, rows: int) -> float:
        return self._accounts[bucket_of(rows)]

    def compare(self, rows: int, predicted: float, real: float, *, drafts: bool, steps: int = 1) -> None:
        """Takes in what so many like steps took in the mean and what the costs alone predict for them. Nonsense changes
        nothing.
        """
        if 0.0 < predicted < math.inf and 0.0 < real < math.inf:
            self._scales[bucket_of(rows)].observe(math.log(real / predicted), drafts=drafts, steps=steps)

    def settle(self, rows: int, steps: int, tokens: float, seconds: float, plain: float, *, drafts: bool) -> float:
        """Books `steps` steps of so many tokens and seconds; `plain` are those of one plain step. Returns what they
        were ahead of plain ones, in plain steps.
        """
        size = bucket_of(rows)
        gained, kept = SAVED * steps, SAVED_KEPT * steps
        if drafts:
            gained = tokens / rows - seconds / plain if plain > 0.0 else 0.0
            kept = gained = max(gained, -WORST * steps) if math.isfinite(gained) else 0.0
        self._accounts[size] = _within(self._accounts[size] + gained, MOST)
        self._book(rows, kept)
        return gained

    def _credit(self, rows: int) -> float:
        return max(self._kept, self._kept_of[bucket_of(rows)])

    def _book(self, rows: int, steps: float) -> None:
        size, kept = bucket_of(rows), self._kept_of
        self._kept = _within(self._kept + steps, MOST_KEPT)
        kept[size] = _within(kept[size] + steps, MOST_KEPT)


def _within(steps: float, most: float) -> float:
    return min(max(steps, -most), most)

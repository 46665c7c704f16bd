"""A while in which all new requests keep head KV and draft one level, though that is not expected to pay.

Used by `goodput` and `keeping`. At rest little is known: few rows are tried, what a step of drafts takes is guessed
from plain ones, and what drafts spare the host, the server and its clients is not seen at all. So after a long rest
most rows draft for a few steps, which teach all of that at once. Each such while that changes nothing doubles the rest
before the next one, so that a head that never pays costs less and less. The guard's accounts pay: it begins when they
can, and ends when they are empty.
"""

from aerie.scheduler.planner.guard import Guard

FIRST_REST, LONGEST_REST = 512, 16384
"""Steps at rest before it, twice as many each time."""
_FILLS = 128
"""Steps in which rows with a head must become most of them."""
STEPS = 8
"""Steps in which these draft."""
_HOPE = 0.85
"""Of the plain speed: where drafts promise less, it is not for want of knowing what they cost."""
NEEDED = 2.0
"""Plain steps that the account of drafts must hold: what these lose by _HOPE, and some more. Until it is as full as at
the start, another 1,200 steps would rest.
"""
_SHARE = 0.5
"""Of the rows, so many must have a head."""


class Exploring:
    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._rest = self._left = FIRST_REST
        """Steps of a rest before it; those that are left."""
        self._fills = self._steps = 0
        """Steps in which rows may still get heads, and may still draft."""

    def on(self, rows: int) -> bool:
        """Whether requests that are admitted now, as one of so many rows, keep head KV for it."""
        return self._fills > 0 and self._guard.keeps(rows)

    def drafts(self, headed: int, rows: int) -> bool:
        """Whether the `headed` ones of so many rows draft in the next steps."""
        return self._steps > 0 and headed >= _SHARE * rows and self._guard.allows(rows)

    def note(self, rows: int, *, drafts: bool, trial: bool, promised: float, cost: float, steps: int = 1) -> None:
        """So many steps of so many rows are planned. Drafts have last promised fresh rows so many times the plain
        speed, and head KV of a prompt costs so many plain steps.
        """
        if self._steps and drafts and not trial:
            self._steps = max(self._steps - steps, 0)
            self._fills = self._fills if self._steps else 0
        elif self._fills:
            self._fills = max(self._fills - steps, 0)
            self._steps = self._steps if self._fills else 0
        elif drafts and not trial:
            self._rest = self._left = FIRST_REST
        else:
            self._left -= steps
            if self._left <= 0 and promised >= _HOPE and self._affords(rows, cost):
                self._rest = min(2 * self._rest, LONGEST_REST)
                self._left, self._fills, self._steps = self._rest, _FILLS, STEPS

    def _affords(self, rows: int, cost: float) -> bool:
        """Whether the accounts can pay: that of drafts, and that of head KV for the rows that must get some."""
        return self._guard.account(rows) >= NEEDED and self._guard.affords(rows, _SHARE * rows * cost)

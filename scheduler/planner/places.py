"""Where the statistics keep what is known of a row's owner: each row has some places, which its owners use in turn.

Used by `goodput` and `lessons`. So steps of former owners may teach what they accepted after the next ones have begun.
"""

import numpy as np

from aerie.contracts.step import Longs

EACH = 4
"""Places of a row: of so many short answers, one after the other, nothing need be learned at once."""


class Places:
    def __init__(self, rows: int) -> None:
        self.count = EACH * rows
        self._rows = rows
        self._of: Longs = np.arange(rows)
        self._left: set[int] = set()
        """Places of former owners that may still be taught."""

    def of(self, rows: Longs) -> Longs:
        """The places of these rows' owners."""
        return self._of[rows]

    def free(self, row: int) -> bool:
        """Whether a row's next owner can have a place of which nothing is left to learn."""
        return self._next(row) not in self._left

    def begin(self, row: int) -> int:
        """The place of a row's next owner."""
        self._left.add(int(self._of[row]))
        self._of[row] = place = self._next(row)
        return place

    def learned(self, but: Longs) -> None:
        """All that owners have shown is learned, but for what those at some places did in the last step."""
        self._left = set(but[self._of[but % self._rows] != but].tolist())

    def _next(self, row: int) -> int:
        return (int(self._of[row]) + self._rows) % self.count

"""Where the statistics keep what is known of a row's owner: each row has two places, which its owners use alternately.

Used by `goodput` and `lessons`. So steps of a former owner may teach what it accepted after the next one has begun.
"""

import numpy as np

from aerie.contracts.step import Longs


class Places:
    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._of: Longs = np.arange(rows)
        self._taken: set[int] = set()
        """Rows whose other place may still be taught."""

    def of(self, rows: Longs) -> Longs:
        """The places of these rows' owners."""
        return self._of[rows]

    def free(self, row: int) -> bool:
        """Whether nothing is left to learn of the owner before this one: its place may have a new one."""
        return row not in self._taken

    def begin(self, row: int) -> int:
        """The place of a row's next owner."""
        place = int(self._of[row])
        self._of[row] = place = place + self._rows if place < self._rows else place - self._rows
        self._taken.add(row)
        return place

    def learned(self, but: Longs) -> None:
        """All that owners have shown is learned, but for what those at some places did in the last step."""
        rows = but % self._rows
        self._taken = set(rows[self._of[rows] != but].tolist())

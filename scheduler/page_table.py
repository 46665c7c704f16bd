"""The host's mirror of the device's page table: which pages each row holds, in order, and which of them it owns.

Used by `scheduler.memory`. Every change is also recorded as a delta, so that the next plan carries only what changed.
Invariants: entries [0, counts[row]) of a row are real pages. At most one row owns a page; other rows that hold it share
it through the prefix cache. A shared page lies wholly below the length of every row that holds it.
"""

import numpy as np

from aerie.contracts.step import Bools, Ints, Longs, PageUpdates


class PageTable:
    """`width` entries for each of `rows` rows."""

    def __init__(self, rows: int, width: int, page_size: int) -> None:
        self.page_size = page_size
        self.pages: Ints = np.zeros((rows, width), dtype=np.int32)
        self.owned: Bools = np.zeros((rows, width), dtype=np.bool_)
        self.counts: Longs = np.zeros(rows, dtype=np.int64)
        self._deltas: list[tuple[Ints, Ints, Ints]] = []  # rows, slots and pages, [n] each

    def missing(self, rows: Longs, tokens: Ints) -> tuple[Longs, Longs]:
        """Those of rows [n] with too few pages for `tokens` [n] tokens, and how many more pages each of them needs."""
        short = (tokens > self.counts[rows] * self.page_size).nonzero()[0]
        rows = rows[short]
        needed = (tokens[short] + (self.page_size - 1)) // self.page_size
        return rows, needed - self.counts[rows]

    def add(self, rows: Longs, counts: Longs, pages: Ints) -> None:
        """Appends `counts[i]` >= 1 of `pages` to each row, which owns them from now on."""
        slots = self.counts[rows]  # [rows]
        self.counts[rows] += counts
        if len(pages) > len(rows):
            # slots: [pages], as rows
            slots = np.repeat(slots - (np.cumsum(counts) - counts), counts) + np.arange(len(pages))
            rows = np.repeat(rows, counts)
        self.pages[rows, slots] = pages
        self.owned[rows, slots] = True
        self._deltas.append((rows.astype(np.int32), slots.astype(np.int32), pages))

    def share(self, row: int, pages: Ints) -> None:
        """Puts cached pages at the start of a fresh row."""
        assert self.counts[row] == 0, "shared pages come first in a row"
        slots = np.arange(len(pages), dtype=np.int32)
        self.pages[row, slots] = pages
        self.counts[row] = len(pages)
        self._deltas.append((np.full(len(pages), row, dtype=np.int32), slots, pages))

    def release(self, row: int) -> Ints:
        """Empties a row; returns the pages that it owned. The device's entries stay until the row's next RowStarts."""
        count = self.counts[row]
        owned = self.pages[row, :count][self.owned[row, :count]]
        self.owned[row, :count] = False
        self.counts[row] = 0
        if self._deltas:  # the device need not receive entries that no plan has carried
            kept = [(delta, delta[0] != row) for delta in self._deltas]
            self._deltas = [(rows[keep], slots[keep], pages[keep]) for (rows, slots, pages), keep in kept if keep.any()]
        return owned

    def drain(self) -> PageUpdates | None:
        """The deltas since the last call."""
        if not self._deltas:
            return None
        if len(self._deltas) == 1:
            rows, slots, pages = self._deltas[0]
        else:
            rows, slots, pages = (np.concatenate(column) for column in zip(*self._deltas, strict=True))
        self._deltas.clear()
        return PageUpdates(rows=rows, slots=slots, pages=pages)

"""The host's mirror of the device's page table: which pages each row holds, in order, and which of them are its own.

Used by `scheduler.memory`. Every change is also noted as a delta for the next plan, so that a plan carries only what
changed. Invariant: entries [0, counts[row]) of a row are real pages; a page is `owned` by at most one row, the others
that hold it share it through the prefix cache, and a shared page lies wholly below the length of every row that has it.
"""

import numpy as np

from contracts.step import Bools, Ints, PageUpdates


class PageTable:
    """`width` entries for each of `rows` rows."""

    def __init__(self, rows: int, width: int, page_size: int) -> None:
        self.page_size = page_size
        self.pages: Ints = np.zeros((rows, width), dtype=np.int32)
        self.owned: Bools = np.zeros((rows, width), dtype=np.bool_)
        self.counts: Ints = np.zeros(rows, dtype=np.int32)
        self._deltas: list[tuple[Ints, Ints, Ints]] = []

    def missing(self, rows: Ints, tokens: Ints) -> Ints:
        """How many pages more each row needs to hold `tokens` tokens."""
        needed = (tokens + (self.page_size - 1)) // self.page_size
        missing: Ints = np.maximum(needed - self.counts[rows], 0)
        return missing

    def add(self, rows: Ints, counts: Ints, pages: Ints) -> None:
        """Appends `counts[i]` of `pages` to each row, which owns them from now on."""
        owners = np.repeat(rows, counts)
        firsts = np.repeat(self.counts[rows] - (np.cumsum(counts) - counts), counts)
        slots = (firsts + np.arange(len(owners))).astype(np.int32)
        self.pages[owners, slots] = pages
        self.owned[owners, slots] = True
        self.counts[rows] += counts
        self._deltas.append((owners, slots, pages))

    def share(self, row: int, pages: Ints) -> None:
        """Lets a fresh row begin with cached pages."""
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
        return owned

    def drain(self) -> PageUpdates | None:
        """The deltas since the last call."""
        if not self._deltas:
            return None
        rows, slots, pages = (np.concatenate(column) for column in zip(*self._deltas, strict=True))
        self._deltas.clear()
        return PageUpdates(rows=rows, slots=slots, pages=pages)

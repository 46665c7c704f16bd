"""The fake device's memory: a page table and two pools that hold tokens where a model's would hold keys and values."""

import numpy as np

from aerie.contracts.step import DUMMY_PAGE, Capacity


class Broken(AssertionError):
    """A plan that breaks the contract."""


def expect(holds: bool, complaint: str) -> None:
    if not holds:
        raise Broken(complaint)


class FakePools:
    def __init__(self, capacity: Capacity) -> None:
        self._page = capacity.page_size
        width = -(-(capacity.max_length + capacity.reserve) // capacity.page_size) + 1
        self.table = np.full((capacity.rows, width), DUMMY_PAGE, dtype=np.int32)
        self.tokens = np.full(capacity.pages * capacity.page_size, -1, dtype=np.int64)
        """The target's pool: the token at each slot."""
        self.pairs = np.full_like(self.tokens, -1)
        """The head's pool: of pair j, the token x_(j+1)."""

    def read(self, row: int, length: int) -> np.ndarray:
        """The row's first `length` tokens."""
        written = self.tokens[self.slots(row, np.arange(length))]
        expect(bool((written >= 0).all()), f"row {row} reads slots that were never written")
        return written

    def slots(self, row: int, positions: np.ndarray) -> np.ndarray:
        page = self._page
        return self.table[row, positions // page] * page + positions % page

    def cover(self, row: int, tokens: int) -> None:
        pages = self.table[row, : -(-tokens // self._page)]
        expect(DUMMY_PAGE not in pages, f"the pages of row {row} do not cover {tokens} tokens")

    def write(self, row: int, start: int, tokens: np.ndarray, writes: dict[int, int]) -> None:
        """Writes and notes the pages written; two rows of a step must not write one page."""
        self.cover(row, start + len(tokens))
        slots = self.slots(row, np.arange(start, start + len(tokens)))
        self.tokens[slots] = tokens
        for page in set((slots // self._page).tolist()):
            expect(writes.setdefault(page, row) == row, f"rows {row} and {writes[page]} both write page {page}")

    def write_pairs(self, row: int, start: int, following: list[int]) -> None:
        self.pairs[self.slots(row, np.arange(start, start + len(following)))] = following

    def check_pairs(self, row: int, length: int, root: int) -> None:
        """A drafting row needs every pair (a_j, x_(j+1)) below its length in the head's pool."""
        following = np.append(self.tokens[self.slots(row, np.arange(1, length))], root)
        pairs = self.pairs[self.slots(row, np.arange(length))]
        holes = np.flatnonzero(pairs != following)
        expect(holes.size == 0, f"row {row} drafts with holes in its head KV at {holes[:8]} of {length}")

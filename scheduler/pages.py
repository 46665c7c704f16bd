"""The free list of KV pages, used by `scheduler.memory`.

Invariants: a page id is either free or held by exactly one owner (a row or the prefix cache); page 0 is the dummy and
is never handed out. Target and head share the ids, so speculation makes no difference here.
"""

import numpy as np
from numpy.typing import NDArray

from aerie.contracts.step import DUMMY_PAGE, Bools, Ints


class PageAllocator:
    """Pages 1 .. pages - 1, handed out and taken back in numpy batches."""

    def __init__(self, pages: int) -> None:
        assert pages >= 2, f"a pool of {pages} pages has none besides the dummy"
        self.total = pages - 1
        # A stack whose top is the end: low ids go out first; a freed page, whose memory is warm, goes out next.
        self._stack: Ints = np.arange(self.total, 0, -1, dtype=np.int32)
        self.free = self.total
        self._is_free: Bools = np.ones(pages, dtype=np.bool_)
        self._is_free[DUMMY_PAGE] = False

    @property
    def held(self) -> int:
        return self.total - self.free

    def take(self, count: int) -> Ints:
        """`count` pages; the caller has made sure that they are free."""
        assert count <= self.free, f"asked for {count} pages with {self.free} free"
        self.free -= count
        taken = self._stack[self.free : self.free + count].copy()
        self._is_free[taken] = False
        return taken

    def give(self, pages: Ints) -> None:
        """Takes pages back. Raises on a page given twice, which would go to two rows."""
        assert not self._is_free[pages].any() and DUMMY_PAGE not in pages, f"pages given back twice among {pages}"
        self._is_free[pages] = True
        # This also catches a page that is twice in `pages`, which the check above cannot see.
        self._stack[self.free : self.free + len(pages)] = pages
        self.free += len(pages)
        assert self.free <= self.total, "more pages came back than exist"

    def check(self, held: NDArray[np.integer]) -> None:
        """Raises AssertionError that names the pages unless the free pages and `held` together are every page once."""
        times = np.bincount(self._stack[: self.free], minlength=self.total + 1)  # [total + 1]
        times += np.bincount(held, minlength=self.total + 1)
        lost = np.flatnonzero(times[1:] == 0) + 1
        doubled = np.flatnonzero(times[1:] > 1) + 1
        assert times[DUMMY_PAGE] == 0, "the dummy page has an owner"
        assert lost.size == 0, f"{lost.size} pages are lost: {lost[:8]}"
        assert doubled.size == 0, f"{doubled.size} pages have two owners: {doubled[:8]}"

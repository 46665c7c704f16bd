"""Which pages every row holds: the free list, the page table and the prefix cache as one account.

Used by the policy (admission, growth), settle and the loop (publishing, release). Invariant: each page is free, the
cache's, or owned by one row; `check` verifies it. The cache takes only whole pages below a row's settled length.
"""

import numpy as np

from aerie.contracts.step import Capacity, Ints, Longs
from aerie.scheduler.page_table import PageTable
from aerie.scheduler.pages import PageAllocator
from aerie.scheduler.prefix import Node, PrefixCache


class OutOfPages(Exception):
    """The pool cannot cover the next step: settle what is in flight, then preempt. Never leaves the scheduler."""


class Memory:
    """All pages of a device. `released` counts releases: retry a failed admission only after it changes."""

    def __init__(self, capacity: Capacity, *, prefix_cache: bool) -> None:
        page = capacity.page_size
        self.reserve = capacity.reserve
        self.allocator = PageAllocator(capacity.pages)
        # A row that fills the whole pool is the longest that can be served.
        self.max_length = min(capacity.max_length, self.allocator.total * page - self.reserve + 1)
        width = -(-(self.max_length + self.reserve) // page)
        self.table = PageTable(capacity.rows, width, page)
        self.prefix = PrefixCache(page)
        self.released = 0
        self._caching = prefix_cache
        self._nodes: list[Node | None] = [None] * capacity.rows
        """The deepest cached page on each row's path."""
        self._walked = [0] * capacity.rows
        """Pages of each row that the cache has seen."""

    @property
    def available(self) -> int:
        """Pages that are free or can be evicted from the cache."""
        return self.allocator.free + self.prefix.evictable

    def admit(self, row: int, tokens: list[int], salt: str, *, headless: bool, headroom: int) -> int | None:
        """Gives a fresh row its cached prefix and pages for all of `tokens`; returns the number of cached tokens.

        Returns None and changes nothing if that would leave fewer than `headroom` pages for the running rows.
        """
        node: Node | None = None
        shared: list[int] = []
        if self._caching:
            node, shared = self.prefix.use(salt, tokens, headless=headless)
        page = self.table.page_size
        fresh = -(-(len(tokens) + self.reserve) // page) - len(shared)
        if fresh + headroom > self.available:
            if node is not None:
                self.prefix.release(node)
            return None
        self._nodes[row], self._walked[row] = node, len(shared)
        if shared:
            self.table.share(row, np.array(shared, dtype=np.int32))
        self.table.add(np.array([row]), np.array([fresh]), self._take(fresh))
        return len(shared) * page

    def again(self, tokens: list[int], salt: str) -> int:
        """Cached tokens that a drafting row would compute again, for want of their head KV."""
        return self.prefix.without_head(salt, tokens) if self._caching else 0

    def cover(self, rows: Longs, bounds: Ints) -> None:
        """Gives each row pages for `bounds` tokens and the reserve. Raises OutOfPages, with nothing changed."""
        short, missing = self.table.missing(rows, bounds + self.reserve)
        if not len(short):
            return
        total = int(missing.sum())
        if total > self.available:
            raise OutOfPages
        self.table.add(short, missing, self._take(total))

    def publish(self, row: int, tokens: list[int], settled: int, headed: int, salt: str) -> None:
        """Offers a row's whole pages below `settled` tokens to the cache; those below `headed` have head KV."""
        node = self._nodes[row]
        if node is None:
            return
        first = self._walked[row]
        keys = self.prefix.keys(tokens, first, settled)
        if not keys:
            return
        walked = slice(first, first + len(keys))
        pages = self.table.pages[row, walked].tolist()
        with_head = headed // self.table.page_size - first
        node, taken = self.prefix.extend(node, keys, pages, with_head)
        # If the cache has the page already, the row keeps its copy until it ends: swapping would gain little.
        self.table.owned[row, walked] &= ~np.array(taken)
        self._nodes[row], self._walked[row] = node, walked.stop

    def release(self, row: int) -> None:
        """Takes a row's pages back."""
        self.allocator.give(self.table.release(row))
        node = self._nodes[row]
        if node is not None:
            self.prefix.release(node)
        self._nodes[row], self._walked[row] = None, 0
        self.released += 1

    def cached_pages(self) -> list[int]:
        return [node.page for node in self.prefix.nodes()]

    def check(self) -> None:
        """Raises AssertionError that names the pages unless every page has exactly one owner."""
        self.prefix.check()
        used = np.arange(self.table.pages.shape[1]) < self.table.counts[:, None]
        owned = self.table.pages[self.table.owned & used]
        assert not (self.table.owned & ~used).any(), "a page is owned beyond its row's end"
        self.allocator.check(np.concatenate([owned, np.array(self.cached_pages(), dtype=np.int32)]))

    def check_row(self, row: int, tokens: int, *, slack: int) -> None:
        """Raises AssertionError unless a row's pages hold `tokens` tokens and the reserve, and at most `slack` more."""
        page, pages = self.table.page_size, int(self.table.counts[row])
        most = -(-(tokens + slack + self.reserve) // page)
        assert tokens <= pages * page, f"row {row} has {pages} pages of {page} for {tokens} tokens"
        assert pages <= most, f"row {row} has {pages} pages of {page} for {tokens} tokens; at most {most} can be needed"

    def check_idle(self) -> None:
        """The cheap form of `check`, for when no row holds pages."""
        assert self.allocator.held == self.prefix.size == self.prefix.evictable, (
            f"{self.allocator.held} pages are held at idle, {self.prefix.size} of them cached, "
            f"{self.prefix.evictable} evictable"
        )

    def _take(self, count: int) -> Ints:
        short = count - self.allocator.free
        if short > 0:
            self.allocator.give(np.array(self.prefix.evict(short), dtype=np.int32))
        return self.allocator.take(count)

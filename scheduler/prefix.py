"""The radix prefix cache: pages of finished or running prompts and answers, looked up by their tokens.

Used by `scheduler.memory`. A tree with one whole page a node. The head's KV at position j depends on token j + 1, so a
page's key is its tokens *and the token after them*. Therefore n matched tokens give floor((n - 1) / page) pages, the
last pair of each page is right for every row that finds it, and at least one prompt token is left to compute. Each salt
has a separate root. Pages filled without the head are `headless`: plain rows find them, drafting rows miss them.

Invariants: a node's page belongs to the cache and is never written; the ancestors of a node in use are in use; only
leaves that are not in use are evicted, least recently used first.
"""

import heapq
from collections.abc import Iterator
from itertools import count

import numpy as np

_HEADLESS = b"headless"


class Node:
    """One cached page. `users` counts the rows whose path includes it."""

    __slots__ = ("children", "headless", "key", "last_used", "page", "parent", "users")

    def __init__(self, parent: "Node | None", key: bytes, page: int, headless: bool) -> None:
        self.parent = parent
        self.key = key
        self.page = page
        self.headless = headless
        self.children: dict[bytes, Node] = {}
        self.users = 0
        self.last_used = 0


class PrefixCache:
    """Cached pages by token path: `size` pages in all, of which `evictable` are not in use."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.size = 0
        self.evictable = 0
        self._roots: dict[str, Node] = {}
        self._clock = count(1)
        self._leaves: list[tuple[int, int, Node]] = []
        """Heap of (last used, tie breaker, leaf); stale entries are skipped when popped."""

    def keys(self, tokens: list[int], first: int, length: int) -> list[bytes]:
        """Keys of the whole pages first, first + 1, ... below `length` whose following token is in `tokens`."""
        page = self.page_size
        last = min(length // page, (len(tokens) - 1) // page)
        if last <= first:
            return []
        packed = np.array(tokens[first * page : last * page + 1], dtype=np.int32).tobytes()
        return [packed[4 * page * i : 4 * page * (i + 1) + 4] for i in range(last - first)]

    def use(self, salt: str, tokens: list[int], *, headless: bool) -> tuple[Node, list[int]]:
        """The longest cached prefix as (deepest node, pages), marked as used; `headless` accepts headless pages too."""
        node = self._roots.get(salt)
        if node is None:
            node = self._roots[salt] = Node(None, salt.encode(), 0, headless=False)
        pages = []
        node.users += 1
        for key in self.keys(tokens, 0, len(tokens)):
            child = node.children.get(key)
            if child is None and headless:
                child = node.children.get(key + _HEADLESS)
            if child is None:
                break
            self._enter(child)
            pages.append(child.page)
            node = child
        return node, pages

    def without_head(self, salt: str, tokens: list[int]) -> int:
        """Cached tokens that plain rows find and drafting rows miss."""
        node, found = self._roots.get(salt), 0
        if node is None or not node.children:
            return 0
        for key in self.keys(tokens, 0, len(tokens)):
            child = node.children.get(key) or node.children.get(key + _HEADLESS)
            if child is None:
                break
            found += child.headless
            node = child
        return found * self.page_size

    def extend(self, node: Node, keys: list[bytes], pages: list[int], headed: int) -> tuple[Node, list[bool]]:
        """Walks on from a used node and adds missing pages; the first `headed` keys have the head's KV too.

        Returns the deepest node, used in place of `node`, and which of `pages` now belong to the cache.
        """
        taken = []
        for index, (key, page) in enumerate(zip(keys, pages, strict=True)):
            headless = node.headless or index >= headed
            child = node.children.get(key)
            if child is None and headless:
                key += _HEADLESS
                child = node.children.get(key)
            taken.append(child is None)
            if child is None:
                child = node.children[key] = Node(node, key, page, headless)
                self.size += 1
                self.evictable += 1
            self._enter(child)
            node = child
        return node, taken

    def release(self, node: Node) -> None:
        """Ends the use of a path, from its deepest node up."""
        now = next(self._clock)
        leaf, step = node, node
        while True:
            step.users -= 1
            assert step.users >= 0, "a cached path was released twice"
            step.last_used = now
            if step.parent is None:
                break
            self.evictable += step.users == 0
            step = step.parent
        self._offer(leaf)
        self._drop_root(step)

    def evict(self, wanted: int) -> list[int]:
        """Evicts least recently used pages until `wanted` are free or no more can go; returns the pages."""
        pages: list[int] = []
        while len(pages) < wanted and self._leaves:
            last_used, _, node = heapq.heappop(self._leaves)
            if node.parent is None or node.users or node.children or node.last_used != last_used:
                continue
            parent, node.parent = node.parent, None
            del parent.children[node.key]
            self.size -= 1
            self.evictable -= 1
            pages.append(node.page)
            self._offer(parent)
            self._drop_root(parent)
        return pages

    def nodes(self) -> Iterator[Node]:
        """Every cached page's node."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            if node.parent is not None:
                yield node

    def check(self) -> None:
        """The integrity check: counts, use and headlessness are consistent along every path."""
        nodes = list(self.nodes())
        assert len(nodes) == self.size, f"{len(nodes)} cached pages, counted {self.size}"
        unused = sum(node.users == 0 for node in nodes)
        assert unused == self.evictable, f"{unused} cached pages are unused, counted {self.evictable}"
        for node in nodes:
            parent = node.parent
            assert parent is not None
            assert parent.users >= node.users, "a used page under an unused one"
            assert node.headless or not parent.headless, "a page with head KV under one without"

    def _enter(self, node: Node) -> None:
        self.evictable -= node.users == 0
        node.users += 1

    def _offer(self, node: Node) -> None:
        """Records a node as evictable if it is."""
        if node.parent is None or node.users or node.children:
            return
        if len(self._leaves) > 64 + 2 * self.size:  # most entries are stale
            self._leaves = [entry for entry in self._leaves if entry[2].parent and entry[0] == entry[2].last_used]
            heapq.heapify(self._leaves)
        heapq.heappush(self._leaves, (node.last_used, next(self._clock), node))

    def _drop_root(self, root: Node) -> None:
        """Forgets a root without pages and users: callers may send any number of salts."""
        if root.parent is None and not root.users and not root.children:
            self._roots.pop(root.key.decode(), None)

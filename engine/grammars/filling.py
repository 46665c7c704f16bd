"""The masks of one step on a device that runs beside the host: made on a few threads while the target's pass runs.

First comes the mask of each row's root, then those of the nodes that the grammar lets the target reach. What is not
there when the device waits for it is missing in this step; its task goes on, and the row's next step finds the mask.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import replace
from threading import Lock
from time import thread_time

import numpy as np

from aerie.contracts.grammar import Masking
from aerie.contracts.step import Ending, Ints, Longs, StepOutput
from aerie.engine.grammars.follower import Follower
from aerie.engine.grammars.matcher import GrammarFailed
from aerie.engine.sampling.masks import FREE, MISSING

_POLL_SECONDS = 1e-4
_SAMPLED = 256
"""So many bytes of a mask say which others may equal it: to hash a whole one takes longer than to compare two."""


class Filling:
    """Of the rows of a step that choose under a grammar, by their place in it."""

    def __init__(self, rows: dict[int, Follower], words: Ints, of: Longs, counts: Ints, firsts: Ints) -> None:
        """`words` [masks, words of one] and `of` [places] are filled in; counts [rows of the step] are the places of
        each row, firsts [rows of the step] their roots.
        """
        self._rows = rows
        self._words = words
        self._of = of
        self._counts = counts
        self._firsts = firsts
        self._made: list[bytes] = []
        """The distinct masks."""
        self._alike: dict[bytes, list[int]] = {}
        """Indices of those that may be equal."""
        self._stride = max(words.shape[1] * words.itemsize // _SAMPLED, 1)
        self._lock = Lock()
        self._closed = False
        self._late: set[int] = set()
        self._forbidden: Ints = np.zeros_like(counts)
        self._masking = Masking()
        self._tasks: dict[int, Future[None]] = {}
        of[:] = FREE

    @property
    def used(self) -> int:
        """Distinct masks."""
        return len(self._made)

    def begin(self, pool: Executor) -> None:
        """Begins with the roots. Call it once the step before has been settled."""
        for place, row in self._rows.items():
            if row.guided.over:
                continue
            self._late.add(place)
            self._of[self._firsts[place] : self._firsts[place] + self._counts[place]] = MISSING
            if row.task is None or row.task.done():  # else it still works for an earlier step
                self._tasks[place] = row.task = pool.submit(self._root, place, row)

    def grow(self, pool: Executor, tokens: Ints, parents: Ints) -> None:
        """Goes on with the trees: tokens, parents [rows, most]."""
        for place, root in self._tasks.items():
            count = int(self._counts[place])
            if count > 1:
                row = self._rows[place]
                own = tokens[place, :count].tolist(), parents[place, :count].tolist()
                self._tasks[place] = row.task = pool.submit(self._nodes, place, row, root, *own)

    def finish(self, over: Callable[[], bool]) -> None:
        """Waits for all masks, or until the device waits for them, which `over` says, and a row can go on."""
        waiting = set(self._tasks.values())
        while waiting and not (over() and self._goes_on()):
            waiting = wait(waiting, _POLL_SECONDS).not_done
        with self._lock:
            self._closed = True

    def settled(self, output: StepOutput) -> StepOutput:
        """Notes what the rows have committed; adds to the output what the masks took, and the rows that failed."""
        faults: dict[int, str] = {}
        for place, row in self._rows.items():
            if row.guided.over:
                continue
            count = int(output.counts[place])
            row.commit(output.token_ids[place, :count].tolist())
            if row.fault is not None:
                faults[place] = row.fault
            row.guided.over = place in faults or output.endings[place] != Ending.OPEN
        masking = self._masking
        masking.late, masking.distinct = len(self._late - faults.keys()), self.used
        masking.drafted = int(output.drafted[list(self._rows)].sum())
        masking.forbidden = int(self._forbidden.sum())
        return replace(output, faults=faults, masking=masking, forbidden=self._forbidden)

    def _goes_on(self) -> bool:
        """Whether some row of the step need not wait."""
        return len(self._late) < len(self._counts)

    def _root(self, place: int, row: Follower) -> None:
        began = thread_time()
        try:
            if self.put(int(self._firsts[place]), row.root_words(), thread_time() - began):
                self._late.discard(place)
        except Exception as error:  # noqa: BLE001  of any kind: nobody else hears of it
            row.fault = str(error)

    def _nodes(
        self, place: int, row: Follower, root: Future[None], tokens: Sequence[int], parents: Sequence[int]
    ) -> None:
        root.result()  # it began before this task did
        if row.fault is not None:
            return
        children: list[list[int]] = [[] for _ in tokens]
        for node in range(1, len(tokens)):
            children[parents[node]].append(node)
        walk = _Walk(self, row, int(self._firsts[place]), tokens, children)
        try:
            walk.below(0, row.root_words())
        except GrammarFailed:  # after a draft, which the target need not choose
            row.restore()
        with self._lock:
            if not self._closed:
                self._forbidden[place] = walk.forbidden

    def put(self, node: int, words: bytes, seconds: float) -> bool:
        """Takes the mask of a place; False if it comes too late or finds no room."""
        with self._lock:
            index = None if self._closed else self._index(words)
            if index is None:
                return False
            self._of[node] = index
            self._masking.masks += 1
            self._masking.choices += 1
            self._masking.seconds += seconds
            return True

    def _index(self, words: bytes) -> int | None:
        """Index of a mask, which is written where it is new; None without room."""
        alike = self._alike.setdefault(words[:: self._stride], [])
        for index in alike:
            if self._made[index] == words:
                return index
        index = len(self._made)
        if index == len(self._words):
            return None
        self._made.append(words)
        alike.append(index)
        self._words[index] = np.frombuffer(words, dtype=np.int32)
        return index


class _Walk:
    """Over a row's tree, depth first, with its matcher."""

    def __init__(
        self, filling: Filling, row: Follower, first: int, tokens: Sequence[int], children: list[list[int]]
    ) -> None:
        self.forbidden = 0
        self._filling = filling
        self._row = row
        self._first = first
        self._tokens = tokens
        self._children = children

    def below(self, node: int, words: bytes) -> bool:
        """Makes the masks of the nodes under `node`, whose own mask is `words`. Returns False if no more are taken."""
        matcher, goes_on = self._row.matcher, True
        for child in self._children[node]:
            token = self._tokens[child]
            if not words[token >> 3] >> (token & 7) & 1:
                self.forbidden += 1
            elif goes_on and token not in self._row.end_ids:
                began = thread_time()
                matcher.take(token)
                own = matcher.words()
                goes_on = self._filling.put(self._first + child, own, thread_time() - began) and self.below(child, own)
                matcher.undo(1)
        return goes_on

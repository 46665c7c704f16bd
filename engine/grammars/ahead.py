"""The masks of rows' roots on a device that is the host, made on a thread of its own while passes run.

Between two passes a core's cache keeps little of Python, so the first mask after a pass took longer than all others
together. Here another core makes it, from what the step before committed. The choice waits if a mask is not there yet.
"""

from queue import SimpleQueue
from threading import Lock, Thread
from time import thread_time
from typing import Protocol

from aerie.engine.grammars.guided import Guided


class Board(Protocol):
    """Where kernels find the masks of roots, by row."""

    def put(self, row: int, words: bytes) -> None:
        """The mask is there."""

    def await_mask(self, row: int) -> None:
        """The row chooses under a mask that is not there yet."""

    def free(self, row: int) -> None:
        """The row chooses from all tokens."""


_Batches = SimpleQueue[tuple[list[Guided], "Lock"] | None]
"""Rows, and what is held until they are done; then None."""


class Ahead:
    """Until `close`."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._batches: _Batches = SimpleQueue()
        Thread(target=_run, args=(self._batches, board), name="masks-ahead", daemon=True).start()

    def send(self, rows: list[Guided]) -> None:
        """Lends their matchers to the thread, until each row's `wait`."""
        done = Lock()
        done.acquire()
        for row in rows:
            row.busy = done
            self.board.await_mask(row.row)
        self._batches.put((rows, done))

    def close(self) -> None:
        self._batches.put(None)


def _run(batches: _Batches, board: Board) -> None:
    while (batch := batches.get()) is not None:
        rows, done = batch
        for row in rows:
            _make(row, board)
        done.release()
        del batch, rows  # a matcher that nobody else holds is freed here, not when the next batch comes


def _make(row: Guided, board: Board) -> None:
    began = thread_time()
    try:
        while row.due:
            row.matcher.take(row.due.pop(0))
        words = row.matcher.words()
        if row.drafts:
            row.matcher.forced()  # which it keeps
        hash(words)  # kept, too
        row.masks, row.seconds = 1, thread_time() - began
        board.put(row.row, words)
    except Exception as error:  # noqa: BLE001  of any kind: the step that waits raises it
        row.fault = str(error)

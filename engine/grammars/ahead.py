"""What comes between the passes of rows with grammars, on a thread of its own beside the next pass, where the device is
the host: it answers a step, and makes the masks of its rows' next roots.

Between two passes a core's cache keeps little of Python: a few lines of it took as long as many masks. Here another
core runs them. The next pass waits only for a mask that is not there when it chooses.
"""

from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from threading import Lock, Thread
from time import thread_time
from typing import Protocol

from aerie.contracts.worker import Reading, Telling
from aerie.engine.grammars.guided import Guided
from aerie.engine.grammars.guided_step import GuidedStep


class Board(Protocol):
    """Where kernels find the masks of roots, by row."""

    def put(self, row: int, words: bytes) -> None:
        """The mask is there."""

    def await_mask(self, row: int) -> None:
        """The row chooses under a mask that is not there yet."""

    def free(self, row: int) -> None:
        """The row chooses from all tokens."""


_Lent = list[tuple[Guided, "Lock"]]
"""Rows, and what is held until each has its mask."""
_Tasks = SimpleQueue[Callable[[], _Lent] | None]
"""Each returns rows whose masks are due; then None."""


class Ahead:
    """Until `close`."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._tasks: _Tasks = SimpleQueue()
        self._answered: Lock | None = None
        """Held until the last step that `settle` got has been answered."""
        self._thread = Thread(target=_run, args=(self._tasks, board), name="masks-ahead", daemon=True)
        self._thread.start()

    def begin(self, row: Guided) -> None:
        """Makes the first mask of a row. Until its `wait`, its matcher is the thread's; so it is after `settle`."""
        lent = self._lend([row])
        self._tasks.put(lambda: lent)

    def settle(self, step: GuidedStep, read: Reading, answer: Telling) -> None:
        """Settles a step and answers it, in the order of the calls; then makes the masks of the rows that go on."""
        lent = self._lend(step.rows.values())
        answered = self._answered = Lock()
        answered.acquire()

        def settle() -> _Lent:
            settled = step.settle(read())
            answer(lambda: settled)
            answered.release()
            for row, done in lent:
                if row.over:
                    self.board.free(row.row)
                    done.release()
            return [(row, done) for row, done in lent if not row.over]

        self._tasks.put(settle)

    def await_answers(self) -> None:
        """Until all steps that `settle` got have been answered."""
        if self._answered is not None:
            with self._answered:
                self._answered = None

    def close(self) -> None:
        """Answers what it has got, and ends the thread."""
        self._tasks.put(None)
        self._thread.join()

    def _lend(self, rows: Iterable[Guided]) -> _Lent:
        for row in rows:
            self.board.await_mask(row.row)
        return [(row, row.lend()) for row in rows]


def _run(tasks: _Tasks, board: Board) -> None:
    due: deque[tuple[Guided, Lock]] = deque()
    while True:
        if due and tasks.empty():  # no answer waits for a mask
            row, done = due.popleft()
            _make(row, board)
            done.release()
            del row  # a matcher that nobody else holds is freed here, not when the next one comes
        elif (task := tasks.get()) is not None:
            due += task()
            del task
        else:
            return


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

"""A parser as a machine of steps over the text that has arrived."""

from collections.abc import Callable

from aerie.server.parsing.event_log import EventLog
from aerie.server.parsing.regions import AnswerParser, Event


class SteppingParser(AnswerParser):
    """Each step takes what it can from the buffer and returns whether it changed the step; `last` says that no more
    text will come.
    """

    def __init__(self, log: EventLog, first: Callable[[bool], bool], *, one_call: bool) -> None:
        """With `one_call` the answer ends after its first call."""
        self._log = log
        self._step = first
        self._one_call = one_call
        self._buffer = ""

    @property
    def calls(self) -> int:  # type: ignore[override]
        return self._log.calls

    @property
    def failures(self) -> int:  # type: ignore[override]
        return self._log.failures

    @property
    def ended(self) -> bool:  # type: ignore[override]
        return self._one_call and self._log.complete > 0

    def feed(self, text: str) -> list[Event]:
        self._buffer += text
        self._drain(last=False)
        return self._log.take()

    def finish(self) -> list[Event]:
        self._drain(last=True)
        self._close()
        return self._log.take()

    def _close(self) -> None:
        """Ends what the end of the text has left open."""

    def _drain(self, *, last: bool) -> None:
        while not self.ended and self._step(last):
            pass

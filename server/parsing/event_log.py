"""Collects the events of an answer between two calls of its parser, and counts its calls. Readers write here too."""

import uuid
from collections.abc import Callable

from aerie.server.parsing.regions import CallArguments, CallClosed, CallOpened, Content, Event, Reasoning, add
from aerie.server.parsing.typed import is_object


class EventLog:
    """`new_id` makes the id of a call from its index."""

    def __init__(self, new_id: Callable[[int], str]) -> None:
        self.calls = 0
        self.complete = 0
        """Those of them that are whole."""
        self.failures = 0
        self._new_id = new_id
        self._events: list[Event] = []
        self._pieces: list[str] = []
        """Arguments of the open call that are not in `_events` yet."""
        self._arguments: list[str] = []
        """The others."""

    def reasoning(self, text: str) -> None:
        if text:
            add(self._events, Reasoning(text))

    def content(self, text: str) -> None:
        if text:
            add(self._events, Content(text))

    def open(self, name: str) -> None:
        self._arguments = []
        self._events.append(CallOpened(self.calls, self._new_id(self.calls), name))
        self.calls += 1

    def arguments(self, text: str) -> None:
        if text:
            self._pieces.append(text)

    def close(self, *, complete: bool) -> None:
        self._write_arguments()
        if complete:
            self.complete += 1
            self.failures += not is_object("".join(self._arguments))
        self._events.append(CallClosed(self.calls - 1, complete))

    def take(self) -> list[Event]:
        self._write_arguments()
        events, self._events = self._events, []
        return events

    def _write_arguments(self) -> None:
        if self._pieces:
            text = "".join(self._pieces)
            self._arguments.append(text)
            add(self._events, CallArguments(self.calls - 1, text))
            self._pieces = []


def random_id(letters: int) -> Callable[[int], str]:
    """Ids as OpenAI has them, or of this many letters and digits."""
    if letters:
        return lambda _: uuid.uuid4().hex[:letters]
    return lambda _: f"call_{uuid.uuid4().hex[:24]}"

"""Parses answers that are sequences of messages, each in a channel: gpt-oss writes its reasoning, its answer and every
call as a message of its own.

Used where other families have markers inside one text. The events do not depend on how the text is cut. What has no
header is content, and so is a message to somebody else than the client's functions.
"""

import re
from collections.abc import Callable

from aerie.server.parsing.event_log import EventLog, random_id
from aerie.server.parsing.families import ChannelFamily
from aerie.server.parsing.stepping import SteppingParser
from aerie.server.parsing.typed import is_object
from aerie.server.text.stops import begun

MAX_HEADER = 256
"""Characters of a message's header."""
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_WORD = re.compile(r"\s*(\w*)")


class ChannelParser(SteppingParser):
    """The prompt has begun the first message; its header is the beginning of the answer."""

    def __init__(
        self, family: ChannelFamily, *, one_call: bool = False, new_id: Callable[[int], str] | None = None
    ) -> None:
        self._family = family
        super().__init__(EventLog(new_id or random_id(0)), self._header, one_call=one_call)
        self._put: Callable[[str], None] = self._log.content
        """Where the text of the open message goes."""
        self._calling = False
        self._arguments = ""
        self._begun: list[Callable[[str], None]] = []
        """Regions that have text; a further message of the same begins on a line of its own."""

    @property
    def reasoning(self) -> bool:  # type: ignore[override]
        return self._put == self._log.reasoning

    def _close(self) -> None:
        if self._calling:  # its end token is not in the text; arguments that the limit cut are no object
            self._close_call(complete=is_object(self._arguments))

    def _header(self, last: bool) -> bool:
        header, marker, rest = self._buffer.partition(self._family.message)
        if marker and len(header) <= MAX_HEADER:
            self._buffer, self._step = rest, self._text
            self._open(header)
            return True
        if len(header) <= MAX_HEADER and not last:
            return False
        if header.strip() not in ("", self._family.role) and (
            len(header) > MAX_HEADER or self._family.channel not in header
        ):  # it is none
            self._put = self._log.content
            self._step = self._text
            return True
        self._buffer = ""
        return False

    def _open(self, header: str) -> None:
        family = self._family
        recipient = _RECIPIENT.search(header)
        found = _WORD.match(header.partition(family.channel)[2])
        channel = found[1] if found else ""
        to, prefix, name = ("", "", "") if recipient is None else recipient[1].partition(family.recipient)
        if prefix and name and not to:
            self._log.open(name)
            self._calling, self._put, self._arguments = True, self._argue, ""
            return
        self._put = self._log.reasoning if channel == family.reasoning else self._log.content
        if self._put in self._begun:
            self._put("\n")
        self._begun.append(self._put)

    def _argue(self, text: str) -> None:
        self._arguments += text
        self._log.arguments(text)

    def _text(self, last: bool) -> bool:
        """The text of a message, up to the marker that ends it or begins another."""
        marks = (*self._family.ends, self._family.start)
        found = min(((place, mark) for mark in marks if (place := self._buffer.find(mark)) >= 0), default=None)
        if found is None:
            length = len(self._buffer) - (0 if last else begun(self._buffer, marks))
            self._put(self._buffer[:length])
            self._buffer = self._buffer[length:]
            return False
        place, mark = found
        self._put(self._buffer[:place])
        self._buffer = self._buffer[place:]
        if self._calling:
            self._close_call(complete=True)
        self._put = self._log.content
        if mark != self._family.start:
            self._buffer = self._buffer.removeprefix(mark)
        self._step = self._between
        return True

    def _close_call(self, *, complete: bool) -> None:
        if not self._arguments.strip():
            self._log.arguments("{}")
        self._calling = False
        self._log.close(complete=complete)

    def _between(self, last: bool) -> bool:
        """Behind a message: the next one begins, or the answer ends."""
        text, start = self._buffer.lstrip(), self._family.start
        if text.startswith(start):
            self._buffer, self._step = text.removeprefix(start), self._header
            return True
        if not last and start.startswith(text):
            return False
        self._step = self._text
        return bool(text)

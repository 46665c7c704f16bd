"""Parses an answer into regions while it grows, by the markup of its model's family.

Made for each answer that may hold reasoning or calls, and fed by `choice`. The events do not depend on how the text is
cut, and nothing is lost: what looked like a call and is none is content. Spaces beside a call, the punctuation between
calls, and the newlines around reasoning belong to the markup.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aerie.server.parsing.event_log import EventLog, random_id
from aerie.server.parsing.families import ReasoningFamily, ToolFamily
from aerie.server.parsing.json_reader import JsonReader
from aerie.server.parsing.named_reader import NamedReader
from aerie.server.parsing.python_reader import PythonReader
from aerie.server.parsing.reader import Reader, Verdict
from aerie.server.parsing.stepping import SteppingParser
from aerie.server.parsing.xml_reader import XmlReader
from aerie.server.text.stops import begun

_BETWEEN_CALLS = " \t\r\n,;"


@dataclass(frozen=True, slots=True)
class Markup:
    """What the parser of one answer looks for."""

    reasoning: ReasoningFamily | None = None
    begins_inside: bool = False
    """The prompt opened the reasoning."""
    tools: ToolFamily | None = None
    schemas: dict[str, Any] = field(default_factory=dict)
    """Each tool's parameters, by its name."""
    one_call: bool = False
    """The answer ends after its first call."""


class RegionParser(SteppingParser):
    """Its steps are the places in an answer: before, in and after reasoning, text, calls."""

    def __init__(self, markup: Markup, new_id: Callable[[int], str] | None = None) -> None:
        self._markup = markup
        log = EventLog(new_id or random_id(0 if markup.tools is None else markup.tools.id_letters))
        first = self._before_reasoning if markup.begins_inside else self._at_start
        super().__init__(log, first, one_call=markup.one_call)
        self._may_reason = markup.reasoning is not None
        self.reasoning = markup.begins_inside
        self._thought = False
        """The reasoning has text."""
        self._marker = ""
        """The marker of the open call, with the space before it."""
        self._reader: Reader | None = None
        self._calls_before = 0
        self._after_call = False
        """Only spaces and markers have come since the last call."""

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.finish()
            self._leave_call(Verdict.MORE)

    def _at_start(self, last: bool) -> bool:
        """Before any content: reasoning may open, and calls of families whose markers count only here."""
        tools, reasoning = self._markup.tools, self._markup.reasoning
        text = self._buffer.lstrip()
        thinks = reasoning.opens if reasoning is not None and self._may_reason else None
        if thinks is not None and text.startswith(thinks):
            self._buffer, self.reasoning, self._step = text.removeprefix(thinks), True, self._in_reasoning
            return True
        opens = tools.opens if tools is not None and tools.only_first else ()
        marker = next((one for one in opens if text.startswith(one)), None)
        if marker is not None:
            self._open_call(marker, self._buffer.index(marker))
            return True
        openers = opens if thinks is None else (*opens, thinks)
        if not last and any(one.startswith(text) for one in openers):
            return False
        self._may_reason, self._step = False, self._in_content
        return True

    def _before_reasoning(self, last: bool) -> bool:
        """The prompt opened the reasoning; some models open it again."""
        assert self._markup.reasoning is not None
        opens = self._markup.reasoning.opens
        text = self._buffer.lstrip("\n")
        if not last and text != opens and opens.startswith(text):
            return False
        self._buffer, self._step = text.removeprefix(opens), self._in_reasoning
        return True

    def _in_reasoning(self, last: bool) -> bool:
        assert self._markup.reasoning is not None
        closes = self._markup.reasoning.closes
        if not self._thought:
            self._buffer = self._buffer.lstrip("\n")
        before, marker, rest = self._buffer.partition(closes)
        if marker:
            self._log.reasoning(before.rstrip("\n"))
            self._buffer, self._step = rest, self._behind_reasoning
            self.reasoning = self._may_reason = False
            return True
        final = before if last else before[: len(before) - begun(before, (closes,))].rstrip("\n")
        self._log.reasoning(final)
        self._thought = self._thought or bool(final)
        self._buffer = before[len(final) :]
        return False

    def _behind_reasoning(self, last: bool) -> bool:
        self._buffer = self._buffer.lstrip("\n")
        if not self._buffer:
            return False
        self._step = self._at_start
        return True

    def _in_content(self, last: bool) -> bool:
        tools = self._markup.tools
        if self._after_call:
            self._buffer = self._buffer.lstrip()
        if tools is None or (tools.only_first and not self._after_call):
            self._say(len(self._buffer))
            return False
        if tools.only_first:
            return self._between_calls(tools, last)
        found = _first_marker(self._buffer, tools.opens)
        if found is not None:
            start, marker = found
            length = len(self._buffer[:start].rstrip())
            self._say(length)
            self._open_call(marker, start - length)
            return True
        if last:
            self._say(len(self._buffer))
        else:
            self._say(len(self._buffer[: len(self._buffer) - begun(self._buffer, tools.opens)].rstrip()))
        return False

    def _between_calls(self, tools: ToolFamily, last: bool) -> bool:
        """Behind a call of a family whose markers count only at the start: another call, or content."""
        text = self._buffer.removeprefix(tools.separator).lstrip()
        marker = next((one for one in tools.opens if text.startswith(one)), None)
        if marker is not None:
            self._open_call(marker, len(self._buffer) - len(text))
            return True
        if not last and any(one.startswith(text) for one in tools.opens):
            return False
        self._say(len(self._buffer) if self._buffer.strip(_BETWEEN_CALLS) else 0)
        return False

    def _say(self, length: int) -> None:
        """Takes this many characters as content."""
        text, self._buffer = self._buffer[:length], self._buffer[length:]
        self._log.content(text)
        self._after_call = self._after_call and not text

    def _open_call(self, marker: str, start: int) -> None:
        """`start` is where the marker begins in the buffer, behind space."""
        tools = self._markup.tools
        assert tools is not None
        end = start + (0 if marker in tools.inside else len(marker))
        self._marker, self._buffer = self._buffer[:end], self._buffer[end:]
        self._reader = self._make_reader(tools, marker)
        self._calls_before = self._log.calls
        self._step = self._in_call

    def _make_reader(self, tools: ToolFamily, marker: str) -> Reader:
        known = frozenset(self._markup.schemas)
        if tools.reads == "xml":
            return XmlReader(self._log, self._markup.schemas, opened_by=marker)
        if tools.reads == "python":
            return PythonReader(self._log, known)
        reader = JsonReader(self._log, arguments=tools.arguments, known=known if tools.only_first else None)
        return NamedReader(self._log, reader) if tools.reads == "named" else reader

    def _in_call(self, last: bool) -> bool:
        assert self._reader is not None
        for place, character in enumerate(self._buffer):
            verdict = self._reader.push(character)
            if verdict is not Verdict.MORE or self.ended:
                self._buffer = self._buffer[place + (verdict is not Verdict.BEFORE) :]
                self._leave_call(verdict)
                return True
        self._buffer = ""
        return False

    def _leave_call(self, verdict: Verdict) -> None:
        """Text in which the reader found no call is content."""
        assert self._reader is not None and self._markup.tools is not None
        raw, self._reader = self._reader.raw, None
        if self._log.calls > self._calls_before:
            self._after_call, self._step = True, self._behind_call
            unread = "" if verdict is Verdict.DONE or not raw.strip(_BETWEEN_CALLS) else raw
        else:
            self._step = self._in_content
            self._log.failures += verdict is not Verdict.MORE and not self._markup.tools.only_first
            unread = self._marker + raw
        self._buffer = unread + self._buffer
        self._say(len(unread))

    def _behind_call(self, last: bool) -> bool:
        """A marker that closes the call is left out."""
        assert self._markup.tools is not None
        closes, text = self._markup.tools.closes, self._buffer.lstrip()
        marker = next((one for one in closes if text.startswith(one)), None)
        if marker is None and not last and any(one.startswith(text) for one in closes):
            return False
        self._buffer = text.removeprefix(marker or "")
        self._step = self._in_content
        return True


def _first_marker(text: str, markers: tuple[str, ...]) -> tuple[int, str] | None:
    """Where the first marker begins, and which it is."""
    found = ((text.find(marker), marker) for marker in markers)
    return min((one for one in found if one[0] >= 0), default=None)

"""Reads a call written as Qwen3-Coder does, with one element for each argument:

    <tool_call>
    <function=weather>
    <parameter=city>
    Oslo
    </parameter>
    </function>
    </tool_call>

Values are text; the tool's schema says what they are in JSON. Strings are passed on while they grow, other values when
they are whole.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from aerie.server.parsing.reader import CallSink, Verdict
from aerie.server.parsing.typed import resolved, typed_value, types_of

_FUNCTION = "<function="
_PARAMETER = "<parameter="
_END_PARAMETER = "</parameter>"
_END_FUNCTION = "</function>"
_END_CALL = "</tool_call>"
MAX_NAME = 256


class XmlReader:
    """`schemas` are the tools' parameters by name."""

    def __init__(self, sink: CallSink, schemas: Mapping[str, Any], *, opened_by: str) -> None:
        self.raw = ""
        self._sink = sink
        self._schemas = schemas
        self._properties: Mapping[str, Any] = {}
        self._held = ""
        self._open = False
        self._key = ""
        self._given: set[str] = set()
        self._begun = False
        """Whether the arguments have a member."""
        self._is_string = False
        self._repeated = False
        """Whether the call has had a value for this parameter: the first one counts."""
        self._in_value = False
        self._take: Callable[[str], Verdict] = self._name if opened_by == _FUNCTION else self._function

    def push(self, character: str) -> Verdict:
        verdict = self._take(character)
        if verdict is not Verdict.BEFORE and not self._open:
            self.raw += character
        return verdict

    def finish(self) -> None:
        if not self._open:
            return
        if self._in_value and not self._repeated:
            if not self._is_string:
                self._begin_argument()
                self._sink.arguments('"')
            self._sink.arguments(_escaped(self._held if self._is_string else self._held.removeprefix("\n")))
        self._sink.close(complete=False)

    def _marker(self, character: str, *markers: str) -> str | None:
        """The marker that the held text ends with; "" while it may become one, None if it cannot."""
        self._held = (self._held + character).lstrip()
        for marker in markers:
            if self._held == marker:
                self._held = ""
                return marker
        return "" if any(marker.startswith(self._held) for marker in markers) else None

    def _function(self, character: str) -> Verdict:
        marker = self._marker(character, _FUNCTION)
        if marker:
            self._take = self._name
        return Verdict.BEFORE if marker is None else Verdict.MORE

    def _name(self, character: str) -> Verdict:
        if character != ">":
            self._held += character
            return Verdict.BEFORE if character == "\n" or len(self._held) > MAX_NAME else Verdict.MORE
        name, self._held = self._held.strip(), ""
        if not name:
            return Verdict.BEFORE
        self._sink.open(name)
        self._open, self.raw, self._take = True, "", self._between
        schema = self._schemas.get(name)
        found = schema.get("properties") if isinstance(schema, dict) else None
        given = found if isinstance(found, dict) else {}
        self._properties = {key: resolved(value, schema) for key, value in given.items()}
        return Verdict.MORE

    def _between(self, character: str) -> Verdict:
        """Between parameters."""
        marker = self._marker(character, _PARAMETER, _END_FUNCTION, _END_CALL)
        if marker == _PARAMETER:
            self._take = self._key_of_parameter
        elif marker in (_END_FUNCTION, _END_CALL):
            self._end()
            return Verdict.DONE
        elif marker is None:
            self._end()
            self.raw = self._held[:-1]
            return Verdict.BEFORE
        return Verdict.MORE

    def _end(self) -> None:
        self._sink.arguments("}" if self._begun else "{}")
        self._sink.close(complete=True)
        self._open, self.raw = False, ""

    def _key_of_parameter(self, character: str) -> Verdict:
        if character != ">":
            self._held += character
            return Verdict.MORE
        self._key, self._held = self._held.strip(), ""
        self._repeated = self._key in self._given
        self._given.add(self._key)
        self._is_string = types_of(self._properties.get(self._key)) in ((), ("string",))
        self._in_value, self._take = True, self._value
        if self._is_string and not self._repeated:
            self._begin_argument()
            self._sink.arguments('"')
            self._take = self._first_of_string
        return Verdict.MORE

    def _first_of_string(self, character: str) -> Verdict:
        self._take = self._value
        return Verdict.MORE if character == "\n" else self._value(character)

    def _value(self, character: str) -> Verdict:
        self._held += character
        if self._held.endswith(_END_PARAMETER):
            self._end_value(self._held.removesuffix(_END_PARAMETER))
        elif self._is_string and not self._repeated:
            kept = _kept(self._held)
            self._sink.arguments(_escaped(self._held[: len(self._held) - kept]))
            self._held = self._held[len(self._held) - kept :]
        return Verdict.MORE

    def _end_value(self, text: str) -> None:
        self._held, self._in_value, self._take = "", False, self._between
        if self._repeated:
            return
        if self._is_string:
            self._sink.arguments(_escaped(text.removesuffix("\n")) + '"')
        else:
            value = typed_value(text.removeprefix("\n").removesuffix("\n"), self._properties.get(self._key))
            self._begin_argument()
            self._sink.arguments(json.dumps(value, ensure_ascii=False))

    def _begin_argument(self) -> None:
        self._sink.arguments((", " if self._begun else "{") + json.dumps(self._key, ensure_ascii=False) + ": ")
        self._begun = True


def _kept(text: str) -> int:
    """Length of the end of `text` that may belong to the closing marker, a newline before it included."""
    for length in range(min(len(_END_PARAMETER) + 1, len(text)), 0, -1):
        if ("\n" + _END_PARAMETER).startswith(text[-length:]) or _END_PARAMETER.startswith(text[-length:]):
            return length
    return 0


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]

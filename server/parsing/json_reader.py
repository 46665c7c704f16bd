"""Reads calls written as JSON: an object with the function's name and arguments, or a list of such objects.

    {"name": "weather", "arguments": {"city": "Oslo"}}

Arguments are passed on character by character once the name is known, as the model wrote them; before that they wait.
"""

import json
from collections.abc import Callable
from typing import Any

from aerie.server.parsing.reader import CallSink, Verdict

_SPACE = " \t\r\n"


class JsonValue:
    """Follows one JSON value to its end, without checking it further."""

    def __init__(self, first: str) -> None:
        self.kind = {'"': "string", "{": "object", "[": "list"}.get(first, "word")
        self._depth = int(first in "{[")
        self._in_string = first == '"'
        self._escaped = False

    def push(self, character: str) -> Verdict:
        """BEFORE only at the end of a word, such as a number."""
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
                return Verdict.MORE if self._depth else Verdict.DONE
            return Verdict.MORE
        if self.kind == "word":
            return Verdict.BEFORE if character in _SPACE + ",]}" else Verdict.MORE
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            return Verdict.MORE if self._depth else Verdict.DONE
        return Verdict.MORE


class JsonReader:
    """`known` are the only names that make a call; None takes any. `arguments` are the keys that hold arguments."""

    def __init__(self, sink: CallSink, *, arguments: tuple[str, ...], known: frozenset[str] | None) -> None:
        self.raw = ""
        self._sink = sink
        self._keys = arguments
        self._known = known
        self._listed = False
        self._take: Callable[[str], Verdict] = self._begin
        self._begin_object()

    def push(self, character: str) -> Verdict:
        inside, verdict = self._open, self._take(character)
        if verdict is not Verdict.BEFORE and not inside and not self._open:
            self.raw += character
        return verdict

    def finish(self) -> None:
        if self._open:
            if not self._given:
                self._sink.arguments(self._buffered or "")
            self._sink.close(complete=False)

    def _begin_object(self) -> None:
        self._open = False
        self._given = False
        """Whether the call has its arguments, or their beginning."""
        self._buffered: str | None = None
        """Arguments that came before the name, or that have to be read whole."""
        self._key = ""
        self._value: JsonValue | None = None
        self._text = ""

    def _begin(self, character: str) -> Verdict:
        if character in _SPACE:
            return Verdict.MORE
        if character == "[" and not self._listed:
            self._listed = True
            return Verdict.MORE
        if character == "]" and self._listed:
            return Verdict.DONE
        if character != "{":
            return Verdict.BEFORE
        self._take = self._between
        return Verdict.MORE

    def _between(self, character: str) -> Verdict:
        """Between the members of the object."""
        if character in _SPACE + ",":
            return Verdict.MORE
        if character == "}":
            return self._end_object()
        if character != '"':
            return self._give_up()
        self._value, self._text, self._take = JsonValue('"'), '"', self._in_key
        return Verdict.MORE

    def _in_key(self, character: str) -> Verdict:
        assert self._value is not None
        self._text += character
        if self._value.push(character) is Verdict.DONE:
            self._key, self._take = str(_read(self._text) or ""), self._colon
        return Verdict.MORE

    def _colon(self, character: str) -> Verdict:
        if character in _SPACE:
            return Verdict.MORE
        if character != ":":
            return self._give_up()
        self._take = self._before_value
        return Verdict.MORE

    def _before_value(self, character: str) -> Verdict:
        if character in _SPACE:
            return Verdict.MORE
        if character in ",}]":
            return self._give_up()
        self._value, self._text, self._take = JsonValue(character), character, self._in_value
        if self._streams:
            self._give(character)
        return Verdict.MORE

    @property
    def _streams(self) -> bool:
        """Whether the value is an object of arguments whose function is known."""
        assert self._value is not None
        return self._open and self._key in self._keys and self._value.kind == "object"

    def _in_value(self, character: str) -> Verdict:
        assert self._value is not None
        verdict = self._value.push(character)
        if verdict is not Verdict.BEFORE:
            if self._streams:
                self._give(character)
            else:
                self._text += character
                if self._open and self._key in self._keys:
                    self._buffered = self._text
        if verdict is Verdict.MORE:
            return verdict
        self._take = self._between
        if not self._streams and self._end_value() is Verdict.BEFORE:
            return Verdict.BEFORE
        return self._between(character) if verdict is Verdict.BEFORE else Verdict.MORE

    def _give(self, text: str) -> None:
        self._given = True
        self._sink.arguments(text)

    def _end_value(self) -> Verdict:
        if self._key == "name" and not self._open:
            name = _read(self._text)
            if not isinstance(name, str) or not name or (self._known is not None and name not in self._known):
                return Verdict.BEFORE
            self._sink.open(name)
            self._open, self.raw = True, ""
        elif self._key in self._keys and not self._given:
            self._buffered = _arguments(self._text)
        if self._open and self._buffered is not None and not self._given:
            self._give(self._buffered)
        return Verdict.MORE

    def _end_object(self) -> Verdict:
        if not self._open:
            return self._give_up()
        if not self._given:
            self._sink.arguments("{}")
        self._sink.close(complete=True)
        if not self._listed:
            return Verdict.DONE
        self._begin_object()
        self._take = self._next
        return Verdict.MORE

    def _next(self, character: str) -> Verdict:
        """Between the objects of a list."""
        if character == ",":
            self._take = self._begin
            return Verdict.MORE
        return Verdict.MORE if character in _SPACE else Verdict.DONE if character == "]" else Verdict.BEFORE

    def _give_up(self) -> Verdict:
        if self._open:
            if not self._given:
                self._sink.arguments("{}")
            self._sink.close(complete=True)
            self._open = False
        return Verdict.BEFORE


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _arguments(text: str) -> str:
    """Arguments that are not an object: JSON inside a string is unwrapped, null means none."""
    found = _read(text)
    if isinstance(found, str) and isinstance(_read(found), dict):
        return found
    return "{}" if text == "null" else text

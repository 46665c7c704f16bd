"""Reads a call written as its name and a JSON object: `weather[ARGS]{"city": "Oslo"}`, as newer Mistral models do.

Older ones write a list of JSON objects behind the same marker; the first character tells.
"""

from aerie.server.parsing.json_reader import JsonReader, JsonValue
from aerie.server.parsing.reader import CallSink, Verdict

MAX_HEADER = 200
"""Characters of a name with its tags, such as `[CALL_ID]`."""


class NamedReader:
    def __init__(self, sink: CallSink, json_reader: JsonReader) -> None:
        self._own = ""
        self._sink = sink
        self._json: JsonReader | None = json_reader
        self._decided = False
        self._value: JsonValue | None = None

    @property
    def raw(self) -> str:
        return self._json.raw if self._json is not None and self._decided else self._own

    def push(self, character: str) -> Verdict:
        if not self._decided:
            if character.isspace():
                self._own += character
                return Verdict.MORE
            self._decided = True
            if character not in "[{":
                self._json = None
        if self._json is not None:
            return self._json.push(character)
        if self._value is None:
            return self._header(character)
        self._sink.arguments(character)
        if self._value.push(character) is Verdict.DONE:
            self._sink.close(complete=True)
            self._own = ""
            return Verdict.DONE
        return Verdict.MORE

    def _header(self, character: str) -> Verdict:
        if character != "{":
            if character == "\n" or len(self._own) > MAX_HEADER:
                return Verdict.BEFORE
            self._own += character
            return Verdict.MORE
        name = self._own.strip().partition("[")[0].strip()
        if not name:
            return Verdict.BEFORE
        self._sink.open(name)
        self._sink.arguments("{")
        self._value = JsonValue("{")
        return Verdict.MORE

    def finish(self) -> None:
        if self._json is not None:
            self._json.finish()
        elif self._value is not None:
            self._sink.close(complete=False)
            self._own = ""

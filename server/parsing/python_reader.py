"""Reads calls written as a list in Python: `[weather(city="Oslo", days=2), time()]`.

A call counts only if its name is that of a tool. Its arguments are passed on when its closing parenthesis has come.
"""

import ast
import json
from typing import Any

from aerie.server.parsing.reader import CallSink, Verdict

_WORDS = {"true": True, "false": False, "null": None}
_OPEN, _CLOSE = "([{", ")]}"


class PythonReader:
    """Begins behind the `[`."""

    def __init__(self, sink: CallSink, known: frozenset[str]) -> None:
        self.raw = ""
        self._sink = sink
        self._known = known
        self._longest = max(map(len, known), default=0)
        self._name = ""
        self._arguments: str | None = None
        self._depth = 0
        self._quote = ""
        self._escaped = False
        self._calls = 0

    def push(self, character: str) -> Verdict:
        self.raw += character
        verdict = self._in_name(character) if self._arguments is None else self._in_arguments(character)
        if verdict is Verdict.BEFORE:
            self.raw = self.raw[:-1]
        return verdict

    def finish(self) -> None:
        if self._arguments is not None:
            self._sink.arguments(self._arguments)
            self._sink.close(complete=False)
            self.raw = ""

    def _in_name(self, character: str) -> Verdict:
        if character == "(" and self._name in self._known:
            self._sink.open(self._name)
            self._arguments, self._name, self.raw = "", "", ""
            self._calls += 1
            return Verdict.MORE
        if not self._name:
            if character.isspace() or (character == "," and self._calls):
                return Verdict.MORE
            if character == "]" and self._calls:
                self.raw = ""
                return Verdict.DONE
        self._name += character
        return Verdict.MORE if len(self._name) <= self._longest else Verdict.BEFORE

    def _in_arguments(self, character: str) -> Verdict:
        assert self._arguments is not None
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == self._quote:
                self._quote = ""
        elif character in "'\"":
            self._quote = character
        elif character in _OPEN:
            self._depth += 1
        elif character in _CLOSE and self._depth:
            self._depth -= 1
        elif character == ")":
            self._sink.arguments(_as_json(self._arguments))
            self._sink.close(complete=True)
            self._arguments, self.raw = None, ""
            return Verdict.MORE
        self._arguments += character
        return Verdict.MORE


def _as_json(arguments: str) -> str:
    """JSON of `city="Oslo", days=2`; the text itself if it is not of that kind."""
    source = f"f({arguments.strip()})"
    try:
        call = ast.parse(source, mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args or any(word.arg is None for word in call.keywords):
            return arguments
        values = {str(word.arg): _written_value(word.value, source) for word in call.keywords}
        return json.dumps(values, ensure_ascii=False)
    except (SyntaxError, ValueError, TypeError, AssertionError, RecursionError, MemoryError):
        return arguments


def _written_value(node: ast.expr, source: str) -> Any:
    """Of a value that is written as JSON, what JSON says; it differs from Python in some escapes."""
    try:
        return json.loads(ast.get_source_segment(source, node) or "", parse_constant=_refused)
    except ValueError:
        return _value(node)


def _refused(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {str(_value(key)): _value(item) for key, item in zip(node.keys, node.values, strict=True) if key}
    value = ast.literal_eval(node)
    json.dumps(value, allow_nan=False)
    return value

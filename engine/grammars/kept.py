"""Matchers that have taken nothing yet, kept for later requests with the same grammar: agents repeat their schemas."""

from aerie.contracts.grammar import Grammar
from aerie.engine.grammars.matcher import Matcher

_ENTRIES = 64
_BYTES = 32 << 20
_EACH, _A_CHARACTER = 128 << 10, 96
"""Bytes of a matcher, and of each character of its grammar's text: the most of what was measured."""
_ANSWERS = 32
"""A matcher shares with its copies the states of the lexer that their answers have reached, and these only grow. So it
is built anew after so many requests.
"""


class KeptMatchers:
    """Those asked for last, of one vocabulary. For one thread."""

    def __init__(self, entries: int = _ENTRIES, size: int = _BYTES, answers: int = _ANSWERS) -> None:
        """At most `entries` of them, of about `size` bytes together, each for at most `answers` requests."""
        self._entries = entries
        self._size = size
        self._answers = answers
        self._kept: dict[Grammar, tuple[Matcher, int]] = {}
        """With the requests that each has served. The one asked for last at the end."""
        self._held = 0
        self._spent: list[Matcher] = []

    def get(self, grammar: Grammar) -> Matcher | None:
        """For one more request. None if it has to be built, and put here."""
        if grammar not in self._kept:
            return None
        matcher, served = self._kept.pop(grammar)
        if served == self._answers:
            self._held -= bytes_of(grammar)
            self._spent.append(matcher)
            return None
        self._kept[grammar] = matcher, served + 1
        return matcher

    def put(self, grammar: Grammar, matcher: Matcher) -> list[Matcher]:
        """Keeps a matcher that was not there, for a request that it serves. Returns those that it keeps no longer."""
        self._kept[grammar] = matcher, 1
        self._held += bytes_of(grammar)
        dropped, self._spent = self._spent, []
        while len(self._kept) > self._entries or self._held > self._size:
            oldest = next(iter(self._kept))
            dropped.append(self._kept.pop(oldest)[0])
            self._held -= bytes_of(oldest)
        return dropped


def bytes_of(grammar: Grammar) -> int:
    """About what its matcher takes."""
    return _EACH + _A_CHARACTER * (len(grammar.text) + len(grammar.behind) + len(grammar.opens))

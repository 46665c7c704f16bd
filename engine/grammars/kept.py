"""Matchers that have taken nothing yet, kept for later requests with the same grammar: agents repeat their schemas."""

from aerie.contracts.grammar import Grammar
from aerie.engine.grammars.matcher import Matcher

_ENTRIES = 64
_BYTES = 256 << 10
"""Of the grammars' texts; a matcher takes memory in proportion to its own."""


class KeptMatchers:
    """Those asked for last, of one vocabulary. For one thread."""

    def __init__(self, entries: int = _ENTRIES, size: int = _BYTES) -> None:
        """At most `entries` of them, whose texts have at most `size` characters together."""
        self._entries = entries
        self._size = size
        self._kept: dict[Grammar, Matcher] = {}
        """The one asked for last at the end."""
        self._held = 0

    def get(self, grammar: Grammar) -> Matcher | None:
        matcher = self._kept.pop(grammar, None)
        if matcher is not None:
            self._kept[grammar] = matcher
        return matcher

    def put(self, grammar: Grammar, matcher: Matcher) -> list[Matcher]:
        """Keeps a matcher that was not there. Returns those that it keeps no longer."""
        self._kept[grammar] = matcher
        self._held += _size_of(grammar)
        dropped = []
        while len(self._kept) > self._entries or self._held > self._size:
            oldest = next(iter(self._kept))
            dropped.append(self._kept.pop(oldest))
            self._held -= _size_of(oldest)
        return dropped


def _size_of(grammar: Grammar) -> int:
    return len(grammar.text) + len(grammar.behind) + len(grammar.opens)

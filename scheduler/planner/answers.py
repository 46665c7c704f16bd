"""How long answers are, by those that have ended: what a prompt's head KV must pay for in, and how much of what drafts
promise goes beyond an answer's end.

Used by `goodput`.
"""

_START = 128.0
"""Tokens that answers are expected to have before any has ended."""
_RATE = 1 / 32
"""What one more answer counts for."""


class Answers:
    def __init__(self) -> None:
        self.mean = _START
        """Decayed mean of their tokens."""

    def end(self, tokens: int) -> None:
        """An answer of so many tokens has ended."""
        self.mean += _RATE * (max(tokens, 1) - self.mean)

    def expected(self, limit: int) -> float:
        """Tokens of an answer that may have `limit`."""
        return min(float(limit), self.mean)

    def left(self, answered: int, most: int) -> float:
        """Tokens that an answer of so many, which may have `most` more, is expected to get."""
        return min(float(most), max(self.mean - answered, 0.0))

    def kept(self, tokens: float) -> float:
        """The share that answers keep of steps of so many tokens each: the last step commits half, on average."""
        return self.mean / (self.mean + (tokens - 1.0) / 2.0)

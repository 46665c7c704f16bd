"""How long answers are, by those that have ended: what a prompt's head KV must pay for in.

Used by `goodput`.
"""

import numpy as np

from aerie.contracts.step import Bools, Longs, StepOutput

_START = 64.0
"""Tokens that answers are expected to have before any has ended."""
_RATE = 1 / 32
"""What one more answer counts for."""


class Answers:
    """For up to `rows` rows."""

    def __init__(self, rows: int) -> None:
        self._prompts: Longs = np.zeros(rows, dtype=np.int64)
        self._mean = _START

    def begin(self, row: int, prompt: int) -> None:
        """A row gets a new owner with a prompt of so many tokens."""
        self._prompts[row] = prompt

    def settle(self, rows: Longs, live: Bools, output: StepOutput) -> None:
        """Takes in the answers that end with a settled step; `live` says which rows still have their owner."""
        if not output.endings.any():
            return
        ended = live & (output.endings != 0)
        for tokens in (output.lengths[ended] - self._prompts[rows[ended]]).tolist():
            self._mean += _RATE * (max(tokens, 1) - self._mean)

    def expected(self, limit: int) -> float:
        """Tokens of an answer that may have `limit`."""
        return min(float(limit), self._mean)

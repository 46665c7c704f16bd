"""How far planned chains come before the head is unsure of them (`spec.confidence_threshold`), by the rows that draft.

Used by `chains`. Levels that are not drafted cost nothing, and neither do nodes that are not verified.
"""

from collections.abc import Sequence

import numpy as np

from aerie.contracts.step import Ints, Longs
from aerie.scheduler.planner.regression import Doubles

_MEMORY = 0.98
"""Of what earlier steps have shown, this much counts after one more."""
_PRIOR = 2.0
"""Chains that a level without samples counts for, each of them like the mean of all levels."""
_SIZES = 8


class Reach:
    """By the logarithm of the drafting rows: how far chains of up to `depth` levels come."""

    def __init__(self, depth: int) -> None:
        self._went_on, self._could = np.zeros((_SIZES, depth)), np.zeros((_SIZES, depth))
        """Decayed counts of chains that came to a level, and that could have."""
        self._levels = np.tile(np.arange(1.0, depth + 1), (_SIZES, 1))
        self._before = np.arange(depth)

    def levels(self, rows: int) -> Doubles:
        """[depth] levels to which chains of 1, 2, ... planned ones come, in the mean, where so many rows draft."""
        own: Doubles = self._levels[_size(rows)]
        return own

    def note(self, planned: Ints, drafted: Ints, rows: Sequence[int], of: Longs | None = None) -> None:
        """Takes in the levels of chains [n] that were planned, and those that were drafted. `rows` draft in each of the
        steps [s], in their order; `of` [n] says of which step a chain is, each of another one by default.
        """
        sizes = np.array([_size(one) for one in rows])
        for size in set(sizes.tolist()):
            steps = sizes == size  # [s]
            later = np.add.accumulate(steps[::-1])[::-1] - 1  # [s] steps of the same size that come later
            own = steps if of is None else steps[of]  # [n]
            weights = _MEMORY ** (later[own] if of is None else later[of[own]])
            self._learn(size, int(np.count_nonzero(steps)), weights, planned[own][:, None], drafted[own][:, None])

    def _learn(self, size: int, steps: int, weights: Doubles, planned: Ints, drafted: Ints) -> None:
        went_on, could = self._went_on[size], self._could[size]  # [depth] each
        for counts, came in ((went_on, drafted), (could, np.minimum(planned, drafted + 1))):
            counts *= _MEMORY**steps
            counts += weights @ (came > self._before)
        mean = (float(went_on.sum()) + _PRIOR) / (float(could.sum()) + _PRIOR)
        chances = (went_on + _PRIOR * mean) / (could + _PRIOR)
        np.add.accumulate(np.multiply.accumulate(chances), out=self._levels[size])


def _size(rows: int) -> int:
    return min(rows.bit_length(), _SIZES - 1)

"""How far planned chains come before the head is unsure of them (`spec.confidence_threshold`).

Used by `chains`. Levels that are not drafted cost nothing, and neither do nodes that are not verified.
"""

from collections.abc import Sequence

import numpy as np

from aerie.contracts.step import Ints
from aerie.scheduler.planner.accepted import Labels
from aerie.scheduler.planner.regression import Doubles

_MEMORY = 0.98
"""Of what earlier steps have shown, this much counts after one more."""
_PRIOR = 2.0
"""Samples that a level without any counts for, each of them like the mean of all levels."""
_SIZES = 8
_SPARED = 0.75
"""The share of failing nodes that heads keep from being verified, before any step has shown it."""


class Reach:
    """By the logarithm of the drafting rows: how many of up to `depth` levels a step drafts, until the head is unsure
    of all rows.
    """

    def __init__(self, depth: int) -> None:
        self._went_on, self._could = np.zeros((_SIZES, depth)), np.zeros((_SIZES, depth))
        """Decayed counts of steps that drafted a level, and that could have."""
        self._levels = np.tile(np.arange(1.0, depth + 1), (_SIZES, 1))
        self._before = np.arange(depth)

    def levels(self, rows: int) -> Doubles:
        """[depth] levels that are drafted of 1, 2, ... planned ones, in the mean, where so many rows draft."""
        own: Doubles = self._levels[_size(rows)]
        return own

    def note(self, planned: Ints, drafted: Ints, rows: Sequence[int]) -> None:
        """Takes in how many levels steps of so many rows planned and drafted, [s] each, in their order."""
        sizes = np.array([_size(one) for one in rows])
        for size in set(sizes.tolist()):
            own = sizes == size
            self._learn(size, planned[own][:, None], drafted[own][:, None])

    def _learn(self, size: int, planned: Ints, drafted: Ints) -> None:
        went_on, could = self._went_on[size], self._could[size]  # [depth] each
        weights = _MEMORY ** np.arange(len(planned) - 1, -1, -1.0)  # [s]
        for counts, came in ((went_on, drafted), (could, np.minimum(planned, drafted + 1))):
            counts *= _MEMORY ** len(planned)
            counts += weights @ (came > self._before)
        mean = (float(went_on.sum()) + _PRIOR) / (float(could.sum()) + _PRIOR)
        chances = (went_on + _PRIOR * mean) / (could + _PRIOR)
        np.add.accumulate(np.multiply.accumulate(chances), out=self._levels[size])


class Doubts:
    """Of the planned nodes of each depth that would not be accepted, the share that is never verified, since the head
    is unsure of them. So what is planned for a row that accepts little costs little.
    """

    def __init__(self, depth: int, *, unsure: bool) -> None:
        """`unsure`: whether heads may end chains at all."""
        self._unverified, self._failed = np.zeros((2, depth))
        """Decayed counts of such nodes, and of all that were not accepted."""
        self._first = _SPARED if unsure else 0.0
        self.spared = np.full(depth, self._first)
        self._before = np.arange(depth)

    def note(self, labels: Labels, steps: int) -> None:
        """Takes in the labels of so many steps."""
        planned = labels.planned[:, None] > self._before  # [r, depth]
        memory = _MEMORY**steps
        for counts, came in ((self._unverified, labels.drafted), (self._failed, labels.accepted)):
            counts *= memory
            counts += np.count_nonzero(planned & (came[:, None] <= self._before), axis=0)
        mean = (float(self._unverified.sum()) + _PRIOR * self._first) / (float(self._failed.sum()) + _PRIOR)
        np.divide(self._unverified + _PRIOR * mean, self._failed + _PRIOR, out=self.spared)
        np.minimum(self.spared, 1.0, out=self.spared)


def _size(rows: int) -> int:
    return min(rows.bit_length(), _SIZES - 1)

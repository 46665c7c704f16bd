"""How far each row's acceptance lies from the mean of its class, in logits, and for how long that stays true.

Used by `survival`. A row's offset is a posterior mean: the prior is that rows differ by a variance which all of them
teach, and what a row has shown counts less with every step. A row that rests shows nothing. How much of its evidence
still counts when it comes back is learned, by how long it rested: texts have passages that are easy to draft.
"""

import numpy as np

from aerie.contracts.step import Bools, Longs
from aerie.scheduler.planner.regression import Doubles

_MEMORY = 0.95
"""Of a row's evidence, this much counts after one more step with labels."""
_RESTS: Longs = np.array([8, 16, 32, 64])
"""Steps of rest at which another share of the evidence counts."""
_KEPT = (1.0, 0.8, 0.5, 0.2, 0.1)
"""Those shares before any row has come back."""
_KEPT_PRIOR = 2.0
_VARIANCE, _LEAST, _MOST = 0.5, 0.1, 4.0
_VARIANCE_PRIOR, _VARIANCE_MEMORY = 2.0, 0.995
_SHARE = 0.3
"""The least share of what a row shows that its class learns: one row alone shows too when a head has changed."""
_FAR = 4.0
"""Bound of an offset, in logits."""


class Offsets:
    def __init__(self, rows: int) -> None:
        self.now = 0
        """Steps so far."""
        self.variance = _VARIANCE
        """Of the offsets of all rows."""
        self.kept = np.array(_KEPT)
        """Share of the evidence that counts, by the length of a rest."""
        self._squares, self._weights = _VARIANCE * _VARIANCE_PRIOR, _VARIANCE_PRIOR
        self._came_back = np.full(len(_KEPT), _KEPT_PRIOR)
        self._scores, self._information = np.zeros(rows), np.zeros(rows)
        """Decayed sums over a row's labels: how far they lie above the class's mean, and p (1 - p)."""
        self._seen: Longs = np.zeros(rows, dtype=np.int64)
        """The last step that drafted for a row."""
        self._rested: Longs = np.zeros(rows, dtype=np.int64)
        """Index in `kept` of the rest that a row has come back from, until its next labels."""
        self._before: Doubles = np.zeros((2, rows))
        """Scores and information before that rest."""

    def begin(self, row: int) -> None:
        """A row gets a new owner."""
        self._scores[row] = self._information[row] = 0.0
        self._seen[row], self._rested[row] = self.now, 0

    def current(self, rows: Longs) -> tuple[Doubles, Doubles]:
        """Offsets of these rows by now, and their standard deviations, [r] each."""
        kept = self.kept[self._rests(rows)]
        precision = 1.0 / self.variance + kept * self._information[rows]
        own = kept * self._scores[rows] / precision
        np.minimum(np.maximum(own, -_FAR, out=own), _FAR, out=own)
        return own, 1.0 / np.sqrt(precision)

    def draft(self, rows: Longs, *, first: bool = True) -> None:
        """A step drafts for these rows: their rest is over, unless this is not the `first` step that does."""
        rests = self._rests(rows) if first else None
        if rests is not None and rests.any():
            late, rests = rows[rests > 0], rests[rests > 0]
            self._before[0, late], self._before[1, late] = self._scores[late], self._information[late]
            self._rested[late] = rests
            self._scores[late] *= self.kept[rests]
            self._information[late] *= self.kept[rests]
        self._seen[rows] = self.now

    def observe(
        self, rows: Longs, residuals: Doubles, weights: Doubles, offsets: Doubles, known: Bools, steps: int
    ) -> None:
        """Takes in labels [r] of `steps` steps: sums of what they are above their chances, and of p (1 - p), and the
        offsets of those chances; `known` says whether the mean of the row's class is known.
        """
        above = residuals + weights * offsets  # beyond the class's mean
        size = len(self._scores)
        residual: Doubles = np.bincount(rows, residuals, size).astype(np.float64)  # [rows], as the next two
        weight: Doubles = np.bincount(rows, weights, size).astype(np.float64)
        own_above = np.bincount(rows, above, size)
        own = weight.nonzero()[0]
        self._learn_rests(own, residual[own], weight[own])
        self._learn_variance(rows[known], above[known], weights[known], steps)
        self._scores[own] = _MEMORY**steps * self._scores[own] + own_above[own]
        self._information[own] = _MEMORY**steps * self._information[own] + weight[own]

    def shares(self, rows: Longs) -> Doubles:
        """[r] how much the class's mean learns from a label of each row, as a share of what the row's offset learns.
        The share falls with the labels that a row already has.
        """
        return np.maximum(1.0 / (1.0 + self.variance * self._information[rows]), _SHARE)

    def _rests(self, rows: Longs) -> Longs:
        return _RESTS.searchsorted(self.now - self._seen[rows], side="right")

    def _learn_variance(self, rows: Longs, above: Doubles, weights: Doubles, steps: int) -> None:
        """By moments: the product of two labels of one row is the product of their weights times the variance."""
        size = len(self._scores)
        sums, information = np.bincount(rows, above, size), np.bincount(rows, weights, size)  # [rows] each
        products = sums * sums + 2.0 * sums * self._scores
        expected = information * information + 2.0 * information * self._information
        left = max(_VARIANCE_MEMORY**steps, _VARIANCE_PRIOR / self._weights)
        self._squares = left * self._squares + float(products.sum() - (above * above).sum())
        self._weights = left * self._weights + float(expected.sum() - (weights * weights).sum())
        self.variance = min(max(self._squares / self._weights, _LEAST), _MOST)

    def _learn_rests(self, rows: Longs, residual: Doubles, weight: Doubles) -> None:
        """One Newton step of each share, by the first labels after a rest."""
        rests = self._rested[rows]
        if not rests.any():
            return
        scores, information = self._before[:, rows]
        prior = 1.0 / self.variance
        slopes = prior * scores / np.square(prior + self.kept[rests] * information)  # of an offset, by its share
        count = len(self.kept)
        self._came_back += np.bincount(rests, slopes * slopes * weight, count)
        self.kept += np.bincount(rests, slopes * residual, count) / self._came_back
        self.kept[0] = 1.0
        np.clip(self.kept, 0.0, 1.0, out=self.kept)
        self._rested[rows] = 0

"""The chance that a drafted node is accepted, by row and depth, from what verification has shown so far.

Used by `goodput`. The chance that a path of k accepted nodes reaches k + 1 is a logistic of two numbers: an intercept
by family of shapes, temperature class and depth, and the row's own offset times a slope that all rows share. Every
settled step gives labels: of a row that accepted k of d drafted depths, k successes and, if k < d, one failure. Depths
that a device did not draft because its head was unsure count as failures: the chance is that of the planned shape.
Arrays are kept; nothing is allocated in a step.
"""

import numpy as np

from aerie.contracts.sampling import GREEDY_BELOW
from aerie.contracts.step import Ints, Longs
from aerie.scheduler.planner.regression import Doubles

CLASSES = 3
"""Greedy rows, those that sample at temperatures below 1, and the others."""
_FIRST_GUESS = (0.7, 0.6, 0.4)
"""The chance at each depth before any label, by class."""
_PRIOR = 2.0
"""What the first guess weighs, in units of p (1 - p): 8 labels at even chances."""
_MEMORY = 0.99
"""Of what earlier steps taught, this much counts after one more: a better head is believed within 100 steps."""
_STEEP = 4.0
_ROW_PRIOR = 2.0
"""What it weighs that rows are alike, in units of p (1 - p)."""
_ROW_MEMORY = 0.97
_FAR = 2.0
"""Bound of a row's offset, in logits."""
_SLOPE_RATE = 0.002


def temperature_class(temperature: float) -> int:
    if temperature < GREEDY_BELOW:
        return 0
    return 1 if temperature < 1.0 else 2


class Survival:
    """For `rows` rows, `families` families of shapes and depths up to `depth`."""

    def __init__(self, rows: int, families: int, depth: int, *, most: int | None = None) -> None:
        """`most`: labels that `observe` takes at once, at least `rows`."""
        self.depth = depth
        self.most = most = max(most or rows, rows)
        first = np.log(np.array(_FIRST_GUESS) / (1 - np.array(_FIRST_GUESS)))
        # by family and class: [families * CLASSES, depth]
        self._intercepts = np.tile(np.repeat(first, depth).reshape(CLASSES, depth), (families, 1))
        self._weights = np.full_like(self._intercepts, _PRIOR)
        """Decayed sums of p (1 - p), by which a step's labels move an intercept."""
        self.offsets = np.zeros(rows)
        self.classes: Longs = np.zeros(rows, dtype=np.int64)
        self.slope = 1.0
        self.error = 0.0
        """Decayed mean of |predicted - accepted| nodes over the rows of a step, relative to the predicted."""
        self._logits = np.zeros((most, depth))
        self._out = np.zeros((most, depth))
        self._labels = np.zeros((most, depth))
        self._tried = np.zeros((most, depth))
        self._wide = np.zeros((most, depth))
        self._steps = np.arange(depth)
        self._own, self._information = np.zeros(most), np.zeros(most)
        self._kinds = np.zeros(most, dtype=np.int64)

    def begin(self, row: int, temperature: float) -> None:
        """A row gets a new owner."""
        self.offsets[row] = 0.0
        self.classes[row] = temperature_class(temperature)

    def conditional(self, rows: Longs, family: int, depth: int) -> Doubles:
        """[rows, depth] chances that a node is accepted after its parent was. Valid until the next call."""
        count = len(rows)
        logits, own, kinds = self._logits[:count, :depth], self._own[:count], self._kinds[:count]
        np.take(self.classes, rows, out=kinds, mode="clip")
        kinds += family * CLASSES
        np.take(self._intercepts[:, :depth], kinds, axis=0, out=logits, mode="clip")
        np.take(self.offsets, rows, out=own, mode="clip")
        own *= self.slope
        logits += own[:, None]
        np.negative(logits, out=logits)
        np.exp(logits, out=logits)
        logits += 1.0
        np.reciprocal(logits, out=logits)
        return logits

    def survivals(self, rows: Longs, family: int, depth: int) -> Doubles:
        """[rows, depth] chances that the node of each depth is accepted. Valid until the next call."""
        out = self._out[: len(rows), :depth]
        np.multiply.accumulate(self.conditional(rows, family, depth), axis=1, out=out)
        return out

    def fresh(self, temperature: float, rows: int, depth: int) -> Doubles:
        """[rows, depth] chances of rows of this temperature that have drafted nothing yet."""
        own = 1.0 / (1.0 + np.exp(-self._intercepts[temperature_class(temperature), :depth]))
        return np.tile(np.cumprod(own), (rows, 1))

    def forget(self) -> None:
        """Time has passed without labels: the next ones count for more."""
        self._weights *= _MEMORY**64
        np.maximum(self._weights, _PRIOR, out=self._weights)
        self.offsets *= 0.5

    def observe(self, rows: Longs, accepted: Ints, planned: Ints, family: int, *, steps: int = 1) -> None:
        """Takes the labels [r] of `steps` steps: row i accepted `accepted[i]` nodes of a path that could have had
        `planned[i]`. A row has a label for each of its steps; labels beyond `most` are left out.
        """
        rows, accepted, planned = rows[: self.most], accepted[: self.most], planned[: self.most]
        count = len(rows)
        depth = min(int(planned.max(initial=0)), self.depth)
        if depth <= 0:
            return
        chances = self.conditional(rows, family, depth)
        # labels, tried, wide: [r, depth] each
        labels, tried, wide = (part[:count, :depth] for part in (self._labels, self._tried, self._wide))
        places, accepted_, planned_ = self._steps[:depth], accepted[:, None], planned[:, None]
        np.greater(accepted_, places, out=labels)
        np.greater_equal(accepted_, places, out=tried)
        np.less(places, planned_, out=wide)
        tried *= wide
        labels *= tried
        self._judge(chances, tried, labels)
        np.subtract(labels, chances, out=labels)
        labels *= tried  # from here on: residuals
        np.subtract(1.0, chances, out=wide)
        wide *= chances
        wide *= tried  # from here on: what each label tells
        self._learn_rows(rows, labels, wide, steps)
        self._learn_depths(family, self._kinds[:count], labels, wide, steps)

    def _judge(self, chances: Doubles, tried: Doubles, labels: Doubles) -> None:
        expected = float(np.vdot(chances, tried))
        if expected > 0.0:
            error = abs(float(labels.sum()) - expected) / max(expected, 1.0)
            self.error += 0.02 * (error - self.error)

    def _learn_rows(self, rows: Longs, residuals: Doubles, weights: Doubles, steps: int) -> None:
        """One Newton step of each row's offset, from all its labels."""
        own, information = self._own[: len(rows)], self._information[: len(rows)]  # [r] each
        np.add.reduce(residuals, axis=1, out=own)
        np.add.reduce(weights, axis=1, out=information)
        before = self.offsets[rows]
        self.slope = float(np.clip(self.slope + _SLOPE_RATE * float(np.dot(before, own)), 0.2, 2.0))
        size = len(self.offsets)
        moved = np.bincount(rows, weights=own, minlength=size) / (
            np.bincount(rows, weights=information, minlength=size) + _ROW_PRIOR
        )
        self.offsets[rows] = np.clip(_ROW_MEMORY**steps * before + moved[rows], -_FAR, _FAR)

    def _learn_depths(self, family: int, kinds: Longs, residuals: Doubles, weights: Doubles, steps: int) -> None:
        depth = residuals.shape[1]
        for kind in range(family * CLASSES, (family + 1) * CLASSES):
            chosen = kinds == kind
            if not chosen.any():
                continue
            own = self._weights[kind, :depth]  # [depth]
            own *= _MEMORY**steps
            np.maximum(own, _PRIOR, out=own)
            own += chosen @ weights
            self._intercepts[kind, :depth] += chosen @ residuals / own
            np.clip(self._intercepts[kind], -2 * _STEEP, 2 * _STEEP, out=self._intercepts[kind])

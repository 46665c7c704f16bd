"""The chance that a drafted node is accepted, by row and depth, from what verification has shown so far.

Used by `goodput`. The chance that a path of k accepted nodes reaches k + 1 is a logistic of two numbers: an intercept
by family of shapes, temperature class and depth, and the row's own offset (`offsets`). Every settled step gives labels:
of a row that accepted k of d drafted depths, k successes and, if k < d, one failure. Depths that a device did not draft
because its head was unsure count as failures: the chance is that of the planned shape.
"""

import math
from collections.abc import Sequence

import numpy as np

from aerie.contracts.sampling import GREEDY_BELOW
from aerie.contracts.step import Ints, Longs
from aerie.scheduler.planner.offsets import Offsets
from aerie.scheduler.planner.regression import Doubles

CLASSES = 3
"""Greedy rows, those that sample at temperatures below 1, and the others."""
_FIRST_GUESS = (0.82, 0.8, 0.65)
"""The chance at each depth before any label, by class."""
_WIDER = 1 / 3
"""The logit of a tree's chance is above that of a chain's by so many logarithms of its topk, before it has labels:
measured on the demo's heads with 4 and 8.
"""
_PRIOR = 2.0
"""What the first guess weighs, in units of p (1 - p): 8 labels at even chances."""
_KNOWN = 2.5
"""Weight of a class at which its mean is known well enough to tell how rows differ from it."""
_MEMORY = 0.99
"""Of what earlier steps taught, this much counts after one more: a better head is believed within 100 steps."""
FORGET_STEPS = 64
"""Steps without labels after which old ones count for less."""
_LOWEST, _HIGHEST = -4.0, 8.0
"""Bounds of an intercept: what is accepted once in 50 times is as useless as what never is, and is believed sooner."""


def temperature_class(temperature: float) -> int:
    if temperature < GREEDY_BELOW:
        return 0
    return 1 if temperature < 1.0 else 2


class Survival:
    """For `rows` rows, families of shapes of these `widths` (topk), chains first, and depths up to `depth`."""

    def __init__(self, rows: int, widths: Sequence[int], depth: int, *, most: int | None = None) -> None:
        """`most`: labels that `observe` takes at once, at least `rows`."""
        self.depth = depth
        self.most = most = max(most or rows, rows)
        first = np.log(np.array(_FIRST_GUESS) / (1 - np.array(_FIRST_GUESS)))
        wider = _WIDER * np.log(np.array(widths, dtype=np.float64))
        # by family and class: [families * CLASSES, depth]
        self._guess = np.repeat(np.add.outer(wider, first), depth).reshape(-1, depth)
        self._intercepts = self._guess.copy()
        self._weights = np.full_like(self._intercepts, _PRIOR)
        """Decayed sums of p (1 - p), by which a step's labels move an intercept."""
        self.offsets = Offsets(rows)
        self.classes: Longs = np.zeros(rows, dtype=np.int64)
        self.error = 0.0
        """Decayed mean of |predicted - accepted| nodes over the rows of a step, relative to the predicted."""
        self._logits = np.zeros((most, depth))
        self._out = np.zeros((most, depth))
        self._labels = np.zeros((most, depth))
        self._tried = np.zeros((most, depth))
        self._wide = np.zeros((most, depth))
        self._steps = np.arange(depth)
        self._kinds = np.zeros(most, dtype=np.int64)

    def begin(self, row: int, temperature: float) -> None:
        """A row gets a new owner."""
        self.offsets.begin(row)
        self.classes[row] = temperature_class(temperature)

    def conditional(self, rows: Longs, family: int, depth: int, own: Doubles) -> Doubles:
        """[rows, depth] chances that a node is accepted after its parent was, for rows of the offsets `own` [rows].
        Valid until the next call.
        """
        count = len(rows)
        logits, kinds = self._logits[:count, :depth], self._kinds[:count]
        self.classes.take(rows, out=kinds, mode="clip")
        kinds += family * CLASSES
        self._intercepts[:, :depth].take(kinds, axis=0, out=logits, mode="clip")
        logits += own[:, None]
        np.negative(logits, out=logits)
        np.exp(logits, out=logits)
        logits += 1.0
        np.reciprocal(logits, out=logits)
        return logits

    def survivals(
        self, rows: Longs, family: int, depth: int, own: Doubles | None = None, *, out: Doubles | None = None
    ) -> Doubles:
        """[rows, depth] chances that the node of each depth is accepted; by default of rows of their own offsets.
        Without `out`, valid until the next call.
        """
        if own is None:
            own, _ = self.offsets.current(rows)
        if out is None:
            out = self._out[: len(rows), :depth]
        np.multiply.accumulate(self.conditional(rows, family, depth, own), axis=1, out=out)
        return out

    def fresh(self, temperature: float, depth: int, *, luck: float = 0.0) -> Doubles:
        """[depth] chances of a row of this temperature that has drafted nothing yet."""
        logits = self._intercepts[temperature_class(temperature), :depth] + luck * math.sqrt(self.offsets.variance)
        return np.multiply.accumulate(1.0 / (1.0 + np.exp(-logits)))

    def forget(self) -> None:
        """Time has passed without labels: the next ones count for more."""
        self._weights *= _MEMORY**FORGET_STEPS
        np.maximum(self._weights, _PRIOR, out=self._weights)

    def observe(self, rows: Longs, accepted: Ints, planned: Ints, family: int, *, steps: int = 1) -> None:
        """Takes the labels [r] of `steps` steps: row i accepted `accepted[i]` nodes of a path that could have had
        `planned[i]`. A row has a label for each of its steps; labels beyond `most` are left out.
        """
        rows, accepted, planned = rows[: self.most], accepted[: self.most], planned[: self.most]
        count = len(rows)
        depth = min(int(planned.max(initial=0)), self.depth)
        if depth <= 0:
            return
        own, _ = self.offsets.current(rows)
        chances = self.conditional(rows, family, depth, own)
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
        known = self._weights[self._kinds[:count], 0] >= _KNOWN
        self.offsets.observe(rows, labels.sum(axis=1), wide.sum(axis=1), own, known, steps)
        labels += own[:, None] * wide  # from here on: beyond the class's mean
        shares = self.offsets.shares(rows)[:, None]
        labels *= shares
        wide *= shares
        self._learn_depths(self._kinds[:count], labels, wide, steps)

    def _judge(self, chances: Doubles, tried: Doubles, labels: Doubles) -> None:
        expected = float(np.vdot(chances, tried))
        if expected > 0.0:
            error = abs(float(labels.sum()) - expected) / max(expected, 1.0)
            self.error += 0.02 * (error - self.error)

    def _presume(self, kind: int, depth: int) -> None:
        """Levels below those that labels have reached are like the deepest of these: else each level of a good head
        would have to be found by itself.
        """
        known = int(np.count_nonzero(self._weights[kind, :depth] > _PRIOR))
        unknown = self._weights[kind] <= _PRIOR
        if known:
            self._intercepts[kind, known:][unknown[known:]] = self._intercepts[kind, known - 1]

    def _presume_others(self, kind: int) -> None:
        """What has no labels is as far from its first guess as what has them, the head being the same: other shapes at
        this temperature and, if lower ones have none, all other temperatures.
        """
        unknown: list[bool] = [not known.any() for known in self._weights > _PRIOR]
        lowest = all(unknown[kind - kind % CLASSES : kind])
        beyond = self._intercepts[kind] - self._guess[kind]
        for other in range(len(unknown)):
            if unknown[other] and other != kind and (lowest or (other - kind) % CLASSES == 0):
                np.add(self._guess[other], beyond, out=self._intercepts[other])

    def _forget_others(self, kind: int, steps: int) -> None:
        """Labels of other shapes at this temperature count for less as time passes without any."""
        for other in range(kind % CLASSES, len(self._weights), CLASSES):
            if other != kind:
                own = self._weights[other]
                own *= _MEMORY**steps
                np.maximum(own, _PRIOR, out=own)

    def _learn_depths(self, kinds: Longs, residuals: Doubles, weights: Doubles, steps: int) -> None:
        depth = residuals.shape[1]
        for kind in sorted(set(kinds.tolist())):
            chosen = kinds == kind
            own = self._weights[kind, :depth]  # [depth]
            own *= _MEMORY**steps
            np.maximum(own, _PRIOR, out=own)
            own += chosen @ weights
            self._intercepts[kind, :depth] += chosen @ residuals / own
            self._presume(kind, depth)
            self._forget_others(kind, steps)
            self._presume_others(kind)
            np.clip(self._intercepts[kind], _LOWEST, _HIGHEST, out=self._intercepts[kind])

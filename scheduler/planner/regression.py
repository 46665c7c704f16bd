"""Least squares that track a drifting machine: one sample a step; older samples count for less.

Used by `costs`. A Kalman filter of weights that wander about a home and return to it. The home is what is known before
any sample, and after a calibration what that has shown (`anchor`). It keeps its arrays and allocates none in `update`.
Bad samples cannot break it: what is not a positive finite number is dropped, and a sample far from the prediction moves
it as far as a few deviations would.
"""

import math

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

WANDERING, ANCHORED = 1e-5, 1e-3
"""By this share weights return to their home with each sample, and their variances to those of the home."""
NOISE = 0.1
"""Standard deviation of a sample of what the lane computes, as a share of the prediction."""
OUTLIER = 2.0
"""Deviations from the prediction at which a sample is cut, to both sides: were late ones cut sooner, the fit would lie
below what steps take on average, and most where they differ most.
"""
CHANGED = 4
"""So many outliers in a row, all too long or all too short, mean that the machine has changed."""
CHANGE = 0.5
"""By this share, then."""
MOST_SECONDS = 60.0
"""A longer sample is a machine that slept, not a step."""


class Regression:
    """Seconds as a weighted sum of features [n].

    `spreads` [n] says how far each weight may lie from `weights` before any sample: a small one keeps it there until
    samples disagree. A sample has a standard deviation of `noise` predictions, or of `least` seconds if these are more:
    where predictions may be far too small, samples beside them are not exact.
    """

    def __init__(self, weights: Doubles, spreads: Doubles, *, noise: float = NOISE, least: float = 1e-7) -> None:
        self.weights = weights.astype(np.float64)
        self.samples = 0
        self._covariance = np.diag(np.square(spreads.astype(np.float64)))  # [n, n]
        self._start = self._covariance.copy()
        self._home = self.weights.copy()
        self._return = WANDERING
        self._noise, self._least = noise, least
        self._streak = 0
        self._product = np.zeros(len(weights))
        self._outer = np.zeros_like(self._covariance)

    def predict(self, features: Doubles) -> float:
        return max(float(np.dot(self.weights, features)), 0.0)

    def update(self, features: Doubles, seconds: float) -> None:
        """Takes a sample in; drops one that cannot be true."""
        predicted = float(self.weights.dot(features))
        if not 0.0 <= seconds < MOST_SECONDS or not math.isfinite(predicted):
            return
        self._covariance.dot(features, out=self._product)
        noise = max(self._noise * abs(predicted), self._least)
        variance = float(self._product.dot(features)) + noise * noise
        if not 0.0 < variance < math.inf:  # rounding has eaten the covariance
            np.copyto(self._covariance, self._start)
            return
        most = OUTLIER * math.sqrt(variance)
        error = min(max(seconds - predicted, -most), most)
        self._note(seconds - predicted, most)
        np.multiply.outer(self._product, self._product, out=self._outer)
        self._outer *= -1.0 / variance
        self._covariance += self._outer
        self._product *= error / variance
        self.weights += self._product
        self._wander()
        self.samples += 1

    def anchor(self, spreads: Doubles, common: float = 0.0) -> None:
        """What the samples so far have shown is the home; a weight lies as far from it as `spreads` [n] say, and all of
        them by one share of themselves, of the standard deviation `common`.
        """
        np.copyto(self._home, self.weights)
        self._start[:] = np.diag(np.square(spreads)) + np.multiply.outer(common * self.weights, common * self.weights)
        np.copyto(self._covariance, self._start)
        self._return = ANCHORED

    def _wander(self) -> None:
        """Weights that no sample tells apart must not drift off, however long it is so: hence a home."""
        np.subtract(self._home, self.weights, out=self._product)
        self._product *= self._return
        self.weights += self._product
        np.subtract(self._start, self._covariance, out=self._outer)
        self._outer *= 2.0 * self._return
        self._covariance += self._outer

    def _note(self, error: float, most: float) -> None:
        """Believes new samples again after a row of outliers to one side."""
        if abs(error) < most:
            self._streak = 0
            return
        sign = 1 if error > 0 else -1
        self._streak = self._streak + sign if self._streak * sign >= 0 else sign
        if abs(self._streak) >= CHANGED:
            self._streak = 0
            self._doubt()

    def _doubt(self) -> None:
        """The machine has changed: all weights may be wrong by the same share and, once there is a home, each by as
        much as it may differ from that. Before, its spread would say nothing.
        """
        np.multiply.outer(self.weights, self.weights, out=self._outer)
        self._outer *= CHANGE * CHANGE
        self._covariance += self._outer
        if self._return == ANCHORED:
            self._covariance += self._start

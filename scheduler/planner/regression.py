"""Least squares that track a drifting machine: one sample a step, older samples fade.

Used by `costs`. It keeps its arrays and allocates none in `update`. Bad samples cannot break it: what is not a positive
finite number is dropped, and a sample far from the prediction moves it as far as a few deviations would.
"""

import math

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

MEMORY = 0.98
"""Weight of the past after one more sample, the mean of a few steps: about 50 samples count."""
NOISE = 0.1
"""Standard deviation of a sample, as a share of the prediction."""
OUTLIER, LATE = 3.0, 1.0
"""Deviations below and above the prediction at which a sample is cut: what else runs on a machine only adds time."""
CHANGED = 4
"""So many outliers in a row, all too long or all too short, mean that the machine has changed."""
UNSURE = 0.02
"""The past fades until the weights are as uncertain as this share of the start's variance."""
MOST_SECONDS = 60.0
"""A longer sample is a machine that slept, not a step."""


class Regression:
    """Seconds as a weighted sum of features [n].

    `spreads` [n] says how far each weight may lie from `weights` before any sample: a small one keeps it there until
    samples disagree.
    """

    def __init__(self, weights: Doubles, spreads: Doubles) -> None:
        self.weights = weights.astype(np.float64)
        self.samples = 0
        self._covariance = np.diag(np.square(spreads.astype(np.float64)))  # [n, n]
        self._start = self._covariance.copy()
        self._widest = float(np.trace(self._covariance))
        self._streak = 0
        self._gain = np.zeros(len(weights))
        self._product = np.zeros(len(weights))
        self._outer = np.zeros_like(self._covariance)

    def predict(self, features: Doubles) -> float:
        return max(float(np.dot(self.weights, features)), 0.0)

    def update(self, features: Doubles, seconds: float) -> None:
        """Takes a sample in; drops one that cannot be true."""
        if not 0.0 <= seconds < MOST_SECONDS or not math.isfinite(float(features.sum())):
            return
        predicted = float(np.dot(self.weights, features))
        np.dot(self._covariance, features, out=self._product)
        noise = NOISE * max(abs(predicted), seconds, 1e-6)
        variance = float(np.dot(features, self._product)) + noise * noise
        if not 0.0 < variance < math.inf:  # rounding has eaten the covariance
            np.copyto(self._covariance, self._start)
            return
        deviation = math.sqrt(variance)
        error = min(max(seconds - predicted, -OUTLIER * deviation), LATE * deviation)
        self._note(seconds - predicted, OUTLIER * deviation)
        np.multiply(self._product, 1.0 / variance, out=self._gain)
        np.multiply.outer(self._gain, self._product, out=self._outer)
        self._covariance -= self._outer
        # Weights that no sample tells apart must not drift: the past fades only as far as UNSURE says.
        if float(self._covariance.trace()) < UNSURE * self._widest:
            self._covariance *= 1.0 / MEMORY
        self._gain *= error
        self.weights += self._gain
        self.samples += 1

    def _note(self, error: float, most: float) -> None:
        """Believes new samples again after a row of outliers to one side."""
        if abs(error) < most:
            self._streak = 0
            return
        sign = 1 if error > 0 else -1
        self._streak = self._streak + sign if self._streak * sign >= 0 else sign
        if abs(self._streak) >= CHANGED:
            self._streak = 0
            self._covariance += self._start

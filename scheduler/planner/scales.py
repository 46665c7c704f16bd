"""By how much steps take longer than predicted: all of them, and those that draft beside the others.

Used by `guard`, for one size of batch. A Kalman filter of two logarithms of real over predicted seconds: that of plain
steps, and that of drafting steps less that of plain ones. A machine whose speed changes makes both kinds slower, so a
drafting step says something of plain ones too. Else steps that all draft would seem dearer than plain ones whenever the
machine slows down.
"""

import math

_COMMON, _BETWEEN = 0.14**2, 0.1**2
"""Variances before any sample: of all steps, and of drafting steps beside plain ones."""
_COMMON_DRIFT, _BETWEEN_DRIFT = 0.024**2, 0.014**2
"""What each sample adds to them. What drafts are changes with their depth, their rows and what these hold."""
_NOISE, _LEAST = 0.15**2, 0.03**2
"""Variance of one step, and the least of a mean of many: what slows a machine down lasts for several. Plain steps of
four rows on a Xeon's cores: one 0.115, means of 4, 12, 32 and 64 of them 0.075, 0.051, 0.035 and 0.030.
"""
_CUT = 0.2
"""A sample's distance from what was expected is cut here."""
_WIDEST = 1.5
"""Bound of a logarithm."""


class Scales:
    def __init__(self) -> None:
        self._common = self._between = 0.0
        self._common_variance, self._between_variance, self._covariance = _COMMON, _BETWEEN, 0.0

    def ratio(self, *, drafts: bool) -> float:
        return math.exp(self._common + (self._between if drafts else 0.0))

    def observe(self, logarithm: float, *, drafts: bool, steps: int = 1) -> None:
        """Takes in one sample, the logarithm of real over predicted seconds: of the mean of so many steps."""
        self._common_variance += _COMMON_DRIFT
        self._between_variance += _BETWEEN_DRIFT
        expected = self._common + (self._between if drafts else 0.0)
        error = max(-_CUT, min(logarithm - expected, _CUT))
        # What a sample shares with each of the two: its variance, if it was a plain step's, and so on.
        common = self._common_variance + (self._covariance if drafts else 0.0)
        between = self._covariance + (self._between_variance if drafts else 0.0)
        variance = common + (between if drafts else 0.0) + _NOISE / steps + _LEAST
        self._common = _bounded(self._common + common / variance * error)
        self._between = _bounded(self._between + between / variance * error)
        self._common_variance -= common * common / variance
        self._between_variance -= between * between / variance
        self._covariance -= common * between / variance


def _bounded(logarithm: float) -> float:
    return max(-_WIDEST, min(logarithm, _WIDEST))

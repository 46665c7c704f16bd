"""Ratios of modes that take turns at the same work, with bootstrap intervals.

A round is one turn of each mode forth and one back. All modes do the same work in a round, so a round in which the
machine is slow is slow for all of them. Intervals come from resampling whole rounds. Used by `planner` and `compare`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aerie.contracts.step import Longs
from aerie.scheduler.planner.regression import Doubles

_RESAMPLES, _COVERED = 2000, 0.95
_TINY = 1e-12
"""In place of no seconds, when a mode did nothing in the rounds that were drawn."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one mode did in each round."""

    tokens: Doubles
    """[rounds]"""
    seconds: Doubles
    """[rounds]"""

    @property
    def speed(self) -> float:
        return float(self.tokens.sum() / self.seconds.sum())

    def __add__(self, other: "Work") -> "Work":
        return Work(self.tokens + other.tokens, self.seconds + other.seconds)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two speeds, or their difference."""

    value: float
    lower: float
    upper: float

    @property
    def half_width(self) -> float:
        return (self.upper - self.lower) / 2


def ratio(own: Work, base: Work) -> Ratio:
    """The ratio of speeds, with its interval at 95 %."""
    counts = _resamples(len(own.tokens))  # [resamples, rounds]
    speeds = [(counts @ work.tokens) / np.maximum(counts @ work.seconds, _TINY) for work in (own, base)]
    lower, upper = np.quantile(speeds[0] / speeds[1], [(1 - _COVERED) / 2, (1 + _COVERED) / 2])
    return Ratio(own.speed / base.speed, float(lower), float(upper))


def difference(own: Work, base: Work) -> Ratio:
    """`own.speed` less `base.speed`, with its interval at 95 %."""
    counts = _resamples(len(own.tokens))  # [resamples, rounds]
    first, second = ((counts @ one.tokens) / np.maximum(counts @ one.seconds, _TINY) for one in (own, base))
    lower, upper = np.quantile(first - second, [(1 - _COVERED) / 2, (1 + _COVERED) / 2])
    return Ratio(own.speed - base.speed, float(lower), float(upper))


def interval_of_sums(*groups: tuple[Sequence[float], Sequence[float]]) -> tuple[float, float]:
    """The interval at 95 % of one sum over the other, from resampling their pairs: the tokens and steps of answers. Of
    several groups, such as tasks, that of the mean of their ratios; each is resampled by itself.
    """
    drawn = []
    for number, (above, below) in enumerate(groups):
        counts = _resamples(len(above), number)
        drawn.append((counts @ np.asarray(above)) / np.maximum(counts @ np.asarray(below), _TINY))
    lower, upper = np.quantile(np.mean(drawn, axis=0), [(1 - _COVERED) / 2, (1 + _COVERED) / 2])
    return float(lower), float(upper)


def work(tokens: Sequence[float], seconds: Sequence[float]) -> Work:
    return Work(np.array(tokens, dtype=np.float64), np.array(seconds, dtype=np.float64))


def _resamples(rounds: int, seed: int = 0) -> Longs:
    """[resamples, rounds] how often each round is drawn; always the same for a seed."""
    drawn: Longs = np.random.default_rng(seed).multinomial(rounds, [1 / rounds] * rounds, size=_RESAMPLES)
    return drawn

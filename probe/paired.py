"""Ratios of modes that take turns at the same work, with bootstrap intervals.

A round is one turn of each mode forth and one back. All modes do the same work in a round, so a round in which the
machine is slow is slow for all of them. Intervals come from resampling whole rounds. Used by `planner` and `compare`.

Where modes answer a stream of requests, a round is as many tokens for all of them, but not as many prompts: once one
mode commits more tokens in a step than another, its requests end in other rounds. All modes read the same prompts in
the end, so what a round's prompts add says nothing of them. It is taken out by a regression estimator (Cochran,
Sampling Techniques, 1977, chapter 7): seconds are those of rounds that read equally many prompt tokens for a token,
by what one more of them adds within each mode. Every resample has a slope of its own.
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
    read: Doubles
    """[rounds] prompt tokens; 0 where all modes read as many."""

    @property
    def speed(self) -> float:
        return float(self.tokens.sum() / self.seconds.sum())

    def __add__(self, other: "Work") -> "Work":
        return Work(self.tokens + other.tokens, self.seconds + other.seconds, self.read + other.read)


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
    """The ratio of speeds at equally many prompt tokens for a token, with its interval at 95 %."""
    drawn = _ratios(own, base, _resamples(len(own.tokens)))
    lower, upper = np.quantile(drawn, [(1 - _COVERED) / 2, (1 + _COVERED) / 2])
    return Ratio(over(own, base), float(lower), float(upper))


def over(own: Work, base: Work) -> float:
    """The same without its interval."""
    return float(_ratios(own, base, np.ones((1, len(own.tokens)), dtype=np.int64))[0])


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


def work(tokens: Sequence[float], seconds: Sequence[float], read: Sequence[float] = ()) -> Work:
    whole = read or [0.0] * len(tokens)
    return Work(*(np.array(one, dtype=np.float64) for one in (tokens, seconds, whole)))


def _ratios(own: Work, base: Work, counts: Longs) -> Doubles:
    """[resamples] ratios of speeds, from `counts` [resamples, rounds] of how often each round is drawn."""
    drawn = [Work(counts @ work.tokens, counts @ work.seconds, counts @ work.read) for work in (own, base)]
    spreads = [_spreads(work, sums, counts) for work, sums in zip((own, base), drawn, strict=True)]
    along, square = (sum(one) for one in zip(*spreads, strict=True))
    slope = np.where(square > _TINY, along / np.maximum(square, _TINY), 0.0)  # seconds of one more prompt token
    usual = (own.read + base.read).sum() / max(float((own.tokens + base.tokens).sum()), _TINY)
    speeds = [
        sums.tokens / np.maximum(sums.seconds - slope * (sums.read - usual * sums.tokens), _TINY) for sums in drawn
    ]
    ratios: Doubles = speeds[0] / speeds[1]
    return ratios


def _spreads(work: Work, sums: Work, counts: Longs) -> tuple[Doubles, Doubles]:
    """[resamples] each: how seconds a token go along with prompt tokens a token within a mode, and how these differ,
    weighted by tokens. `sums` [resamples] are those of what was drawn.
    """
    share = work.read / np.maximum(work.tokens, _TINY)  # a round without tokens has read nothing
    whole = np.maximum(sums.tokens, _TINY)
    along = counts @ (share * work.seconds) - sums.read * sums.seconds / whole
    return along, counts @ (share * work.read) - sums.read**2 / whole


def _resamples(rounds: int, seed: int = 0) -> Longs:
    """[resamples, rounds] how often each round is drawn; always the same for a seed."""
    drawn: Longs = np.random.default_rng(seed).multinomial(rounds, [1 / rounds] * rounds, size=_RESAMPLES)
    return drawn

"""How long a step takes: seconds of drafting, verifying and extending, and of the time between two steps.

Used by `goodput` alone. Every part is a small linear model of what the host knows of a step, seeded by the calibration
and refreshed by each step's times from the lane's own clock. Verification has a table by tokens beside its straight
line, since a pass does not grow smoothly: kernels take tokens in tiles, graphs in buckets.
"""

from dataclasses import dataclass

import numpy as np

from aerie.scheduler.planner.regression import Doubles, Regression

_KNOTS = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384])
_TILE = 16.0
_KILO = 1024.0
_CERTAIN = 0.3
"""By this share may a weight differ from what the calibration has found."""


@dataclass(slots=True)
class StepWork:
    """What a step did, or the mean of several, as far as its duration depends on it."""

    rows: int
    tokens: float
    """Nodes verified, roots included."""
    context: float
    """Tokens that its rows hold, in total."""
    levels: float = 0
    """Levels drafted."""
    frontier: float = 0
    """Nodes of one level, in all rows: drafting rows times children kept."""
    pairs: float = 0
    """Committed tokens with which the head was extended."""


class StepCosts:
    """Predicts seconds. `ready` once a sample of a plain or verifying pass has come.

    `most_tokens` bounds the nodes of a step; `unit` is the order of a step's seconds, which sets how fast the models
    leave their start.
    """

    def __init__(self, most_tokens: int, *, unit: float = 2e-3) -> None:
        self._hats = _hats(most_tokens + 1)
        knots = self._hats.shape[1]
        self._verify = Regression(
            np.concatenate([[unit, 0.1 * unit], np.zeros(knots + 2)]),
            unit * np.concatenate([[10, 10], 0.1 * np.maximum(_KNOTS[:knots] / 8, 1), [1, 0.3]]),
        )
        # The first level comes from what extended the head, each other one from a pass. A head that is unsure ends
        # chains early, so a calibration may see few levels.
        self._draft = Regression(unit * np.array([0.1, 0.05, 0.1, 0.05]), np.full(4, 0.2 * unit))
        self._extend = Regression(unit * np.array([0.1, 0.05]), unit * np.array([2, 2]))
        self._gap = Regression(unit * np.array([0.05, 0.0]), unit * np.array([2, 1]))
        self._features = np.zeros(knots + 4)
        self._four, self._two = np.zeros(4), np.zeros(2)
        self._table = np.zeros(most_tokens + 1)
        self._ramp = np.arange(most_tokens + 1) / _TILE
        self._rising = np.zeros(most_tokens + 1)
        self._rising_samples = -1
        self.most_tokens = most_tokens
        self._unit = unit

    @property
    def ready(self) -> bool:
        return self._verify.samples > 0

    def anchor(self) -> None:
        """What a calibration has shown holds by and large: live samples change it by a share."""
        unit, knots = self._unit, len(self._features) - 4
        verify = np.concatenate([[0.0, 0.0], 0.05 * np.maximum(_KNOTS[:knots] / 8, 1), [1.0, 0.1]]) * unit
        verify[:2] = _CERTAIN * np.abs(self._verify.weights[:2]) + 0.02 * unit
        self._verify.anchor(verify)
        self._extend.anchor(_CERTAIN * np.abs(self._extend.weights) + 0.02 * unit)

    def observe(self, work: StepWork, phases: dict[str, float], gap: float | None) -> None:
        """Takes a step's phases in. `phases` has the step's own extend, `gap` the seconds in which the lane waited
        before it, if they are known.
        """
        drafts = work.levels > 0
        verify = phases.get("verify", 0.0) + phases.get("accept", 0.0)
        if verify > 0.0 and 0 < work.tokens <= self.most_tokens:
            self._verify.update(self._verify_features(work, drafts), verify)
        if drafts:
            self._draft.update(self._draft_features(work), phases.get("draft", 0.0))
        if work.pairs and "extend" in phases:
            self._extend.update(self._extend_features(work), phases["extend"])
        if gap is not None:
            self._gap.update(self._gap_features(work), max(gap, 0.0))

    def observe_catch_up(self, behind: float, seconds: float) -> None:
        """Takes in a pass that extended heads by so many tokens: what the steps of few rows say little about."""
        self._two[0], self._two[1] = 1.0, behind / _TILE
        self._extend.update(self._two, seconds)

    def step(self, work: StepWork) -> float:
        """A step of this work, with the time between steps."""
        return sum(self.phases(work).values()) + self.gap(work)

    def phases(self, work: StepWork) -> dict[str, float]:
        """Seconds by phase of a step of this work."""
        drafts = work.levels > 0
        phases = {"verify": self._verify.predict(self._verify_features(work, drafts))}
        if drafts:
            phases["draft"] = self._draft.predict(self._draft_features(work))
        if work.pairs:
            phases["extend"] = self._extend.predict(self._extend_features(work))
        return phases

    def gap(self, work: StepWork) -> float:
        """The time between steps."""
        return self._gap.predict(self._gap_features(work))

    def plain(self, rows: int, context: float) -> float:
        """A step that drafts nothing and extends no head."""
        work = StepWork(rows, rows, context)
        verify = self._verify.predict(self._verify_features(work, False))
        return max(verify + self._gap.predict(self._gap_features(work)), 1e-7)

    def table(self, rows: int, context: float, count: int) -> Doubles:
        """[count] seconds of a drafting step's pass over 0, 1, ... nodes, with what does not depend on the draft: the
        time between steps and the fixed part of the extend. Valid until the next call; never falls.
        """
        verify = self._verify
        if self._rising_samples != verify.samples:
            self._rise()
        context_weight, drafting_weight = verify.weights[-2:].tolist()
        fixed = float(verify.weights[0]) + drafting_weight + context / _KILO * max(context_weight, 0.0)
        two = self._two
        two[0], two[1] = 1.0, rows / _TILE
        fixed += self._gap.predict(two) + max(float(self._extend.weights[0]), 0.0)
        table = self._table[:count]
        np.add(self._rising[:count], fixed, out=table)
        np.maximum(table, 1e-7, out=table)
        return table

    def _rise(self) -> None:
        """What the tokens of a pass add, made anew after each sample; never falls."""
        weights, rising, line = self._verify.weights, self._rising, self._table
        np.dot(self._hats, weights[2:-2], out=rising)
        np.multiply(self._ramp, weights[1], out=line)
        rising += line
        np.maximum.accumulate(rising, out=rising)
        self._rising_samples = self._verify.samples

    def draft(self, levels: float, frontier: float) -> float:
        """Drafting so many levels of so many nodes each."""
        fixed, first, level, node = self.draft_rates()
        return fixed + frontier * first + max(levels - 1.0, 0.0) * (level + frontier * node)

    def draft_rates(self) -> tuple[float, float, float, float]:
        """Seconds of a first level, and what a node adds to it; of each other level, and what a node adds to that."""
        fixed, first, level, node = self._draft.weights.tolist()
        return max(fixed, 0.0), max(first, 0.0) / _TILE, max(level, 0.0), max(node, 0.0) / _TILE

    @property
    def pair(self) -> float:
        """Extending the head by one more token of a pass."""
        return max(float(self._extend.weights[1]), 0.0) / _TILE

    @property
    def extend_pass(self) -> float:
        """What a pass of the head costs beside its tokens."""
        return max(float(self._extend.weights[0]), 0.0)

    def _verify_features(self, work: StepWork, drafts: bool) -> Doubles:
        features = self._features
        features[0], features[1] = 1.0, work.tokens / _TILE
        features[2:-2] = self._hats[min(round(work.tokens), self.most_tokens)]
        features[-2], features[-1] = work.context / _KILO, float(drafts)
        return features

    def _draft_features(self, work: StepWork) -> Doubles:
        passes, nodes = max(work.levels - 1.0, 0.0), work.frontier / _TILE
        self._four[:] = 1.0, nodes, passes, passes * nodes
        return self._four

    def _extend_features(self, work: StepWork) -> Doubles:
        self._two[0], self._two[1] = 1.0, work.pairs / _TILE
        return self._two

    def _gap_features(self, work: StepWork) -> Doubles:
        self._two[0], self._two[1] = 1.0, work.rows / _TILE
        return self._two


def _hats(count: int) -> Doubles:
    """[count, knots] weights of linear interpolation between the knots that counts below `count` can reach."""
    reached = int(np.searchsorted(_KNOTS, count)) + 1
    knots = _KNOTS[:reached]
    numbers = np.arange(count, dtype=np.float64)
    return np.stack([np.interp(numbers, knots, one) for one in np.eye(len(knots))], axis=1)

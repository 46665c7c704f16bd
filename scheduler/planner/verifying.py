"""How long a verifying pass takes, by its rows, nodes and context.

Used by `costs`. A table by nodes stands beside the straight line, since a pass does not grow smoothly: kernels take
tokens in tiles, graphs in buckets. What rows hold costs by its tokens, and each further node by what its row holds.
"""

import numpy as np

from aerie.scheduler.planner.regression import Doubles, Regression
from aerie.scheduler.planner.work import StepWork

TILE = 16.0
"""Tokens are counted in tiles, so that all weights are of one order."""
_KILO = 1024.0
_KNOTS = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384])
_SEEN = 128.0
"""Tokens of a row of which a pass takes as long to show them to several nodes rather than to one as of more."""
_FLAT = 4
"""Nodes of a row beyond which each takes longer to see what the row holds: up to there a pass waits for memory."""
_CACHED = 2048.0
"""Tokens of all rows beyond which each may take more time to see: of a small model, caches hold about so many."""
_LINE, _HELD, _SIGHT, _SEVERAL = slice(2), slice(-5, -3), slice(-3, -1), -1
"""Weights of the straight line, of what rows hold, of each further node's view of it, and of what rows add by having
several nodes. Those of the table lie between the first two.
"""
_OTHERS = 7
"""Weights but for the table's."""


class VerifyCosts:
    """Passes over up to `most_tokens` nodes; `unit` is the order of a step's seconds."""

    def __init__(self, most_tokens: int, unit: float) -> None:
        self.most_tokens = most_tokens
        self._unit = unit
        self._hats = _hats(most_tokens + 1)
        knots = self._hats.shape[1]
        self._table = slice(2, 2 + knots)
        self._rough = np.maximum(_KNOTS[:knots] / 8, 1)
        """By how much the table may differ from the straight line, by the knot."""
        self._fit = Regression(
            np.concatenate([[unit, 0.1 * unit], np.zeros(knots + _OTHERS - 2)]),
            unit * np.concatenate([[10, 10], 0.1 * self._rough, np.ones(_OTHERS - 2)]),
        )
        self._features = np.zeros(knots + _OTHERS)
        self._ramp = np.arange(most_tokens + 1) / TILE
        self._added, self._beyond, self._line = np.zeros((3, most_tokens + 1))
        self._made_of = -1, 0.0
        """Samples, and what each node adds beside, of which `_added` was made."""

    @property
    def samples(self) -> int:
        return self._fit.samples

    def observe(self, work: StepWork, seconds: float) -> None:
        if seconds > 0.0 and 0 < work.tokens <= self.most_tokens:
            self._fit.update(self._of(work), seconds)

    def predict(self, work: StepWork) -> float:
        return self._fit.predict(self._of(work))

    def anchor(self, certain: float, common: float) -> None:
        """What a calibration has shown holds by and large: weights differ from it by the share `certain`, and all of
        them alike by `common`.
        """
        weights, unit = np.abs(self._fit.weights), self._unit
        spreads = certain * weights
        spreads[self._table] = 0.05 * self._rough * unit
        for part, least in ((_LINE, 0.02), (_HELD, 0.1), (_SIGHT, 0.02), (_SEVERAL, 0.1)):
            spreads[part] += least * unit
        self._fit.anchor(spreads, common)

    def table(self, rows: int, context: float, each: float, out: Doubles) -> None:
        """Writes into `out` [count] the seconds of a pass over 0, 1, ... nodes, of which each but the roots takes
        `each` seconds more. Never falls.
        """
        if self._made_of != (self._fit.samples, each):
            self._add_up(each)
        count, weights = len(out), self._fit.weights
        seen = context / max(rows, 1) / _KILO  # by a node
        sight, more = (seen * weight for weight in weights[_SIGHT].tolist())
        np.multiply(self._ramp[:count], TILE * sight, out=out)
        out += self._added[:count]
        held = max(float(np.dot(weights[_HELD], _held(context))), 0.0)
        out += float(weights[0]) + held - rows * (each + sight)
        flat = min(_FLAT * rows, count)
        beyond = self._beyond[: count - flat]
        np.multiply(self._ramp[: count - flat], TILE * more, out=beyond)
        out[flat:] += beyond
        np.maximum.accumulate(out, out=out)

    def several(self, rows: int, context: float) -> float:
        """What one of `rows` rows adds by having several nodes, beside these."""
        return max(float(self._fit.weights[_SEVERAL]), 0.0) / TILE * _seen(rows, context)

    def _add_up(self, each: float) -> None:
        """What the nodes of a step add, made anew after each sample."""
        weights, added, line = self._fit.weights, self._added, self._line
        np.dot(self._hats, weights[self._table], out=added)
        np.multiply(self._ramp, weights[1] + TILE * each, out=line)
        added += line
        self._made_of = self._fit.samples, each

    def _of(self, work: StepWork) -> Doubles:
        features = self._features
        features[_LINE] = 1.0, work.tokens / TILE
        features[self._table] = self._hats[min(round(work.tokens), self.most_tokens)]
        features[_HELD] = _held(work.context)
        nodes, seen = work.tokens / max(work.rows, 1), work.context / _KILO
        features[_SIGHT] = (nodes - 1.0) * seen, max(nodes - _FLAT, 0.0) * seen
        features[_SEVERAL] = work.frontier / TILE * _seen(work.rows, work.context)
        return features


def _held(context: float) -> tuple[float, float]:
    """Features of the tokens that rows hold: all, and those beyond what caches hold."""
    return context / _KILO, max(context - _CACHED, 0.0) / _KILO


def _seen(rows: int, context: float) -> float:
    return min(context / (max(rows, 1) * _SEEN), 1.0)


def _hats(count: int) -> Doubles:
    """[count, knots] weights of linear interpolation between the knots that counts below `count` can reach."""
    reached = int(np.searchsorted(_KNOTS, count)) + 1
    knots = _KNOTS[:reached]
    numbers = np.arange(count, dtype=np.float64)
    return np.stack([np.interp(numbers, knots, one) for one in np.eye(len(knots))], axis=1)

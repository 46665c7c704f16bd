"""How long a step takes: seconds of drafting, verifying and extending, and of the time between two steps.

Used by `goodput` alone. Every part is a small linear model of what the host knows of a step, seeded by the calibration
and refreshed by each step's times from the lane's own clock.
"""

from collections.abc import Sequence

import numpy as np

from aerie.scheduler.planner.regression import Doubles, Regression
from aerie.scheduler.planner.verifying import TILE, VerifyCosts
from aerie.scheduler.planner.work import StepWork

_CERTAIN, _COMMON = 0.1, 0.5
"""By this share may a weight differ from what the calibration has found, and by that all of them alike: steps that
serve take longer, whatever they do, since pages lie apart and the host takes its part of the caches.
"""
_PROMPTS = 0.3, 2.0
"""Bounds of what a pass over prompts takes beside one that verifies as many tokens: it leaves out the target's output
for most of them, and more of them see each other.
"""
_MANY = 32
"""Tokens over which the time of one is a mean."""
_ONE = StepWork(1, 1, 0)
_GAP_NOISE = 0.25
"""Standard deviation of a gap, in units: first ones say little of later ones, so all count the same."""


class StepCosts:
    """Predicts seconds. `ready` once a sample of a plain or verifying pass has come.

    `most_tokens` bounds the nodes of a step; `unit` is the order of a step's seconds, which sets how fast the models
    leave their start.
    """

    def __init__(self, most_tokens: int, *, unit: float = 2e-3) -> None:
        self._verify = VerifyCosts(most_tokens, unit)
        # The first level comes from what extended the head, each other one from a pass.
        self._draft = Regression(unit * np.array([0.1, 0.05, 0.1, 0.05]), np.full(4, 0.2 * unit))
        self._extend = Regression(unit * np.array([0.1, 0.05]), unit * np.array([2, 2]))
        self._catch_up = Regression(unit * np.array([0.1, 0.05]), unit * np.array([2, 2]))
        # What the host, the server and clients take from a machine differs from step to step. While all steps draft, or
        # none, no gap of the other kind is seen. So both are taken to be alike until both have been seen often: a few
        # long gaps of the first drafts would keep the planner from ever drafting again.
        self._gap = Regression(
            unit * np.array([0.05, 0.0, 0.0]), unit * np.array([0.7, 0.5, 0.1]), noise=0.0, least=_GAP_NOISE * unit
        )
        self._prompts = 0.0
        """Seconds of a pass over prompts, as a share of one that verifies as many tokens; 0 if unknown."""
        self._four, self._three, self._two = np.zeros(4), np.zeros(3), np.zeros(2)
        self._table = np.zeros(most_tokens + 1)
        self.most_tokens = most_tokens
        self._unit = unit

    @property
    def ready(self) -> bool:
        return self._verify.samples > 0

    def anchor(self) -> None:
        """What a calibration has shown holds by and large: live samples change it by a share."""
        self._verify.anchor(_CERTAIN, _COMMON)
        for one in (self._draft, self._extend, self._catch_up):
            one.anchor(_CERTAIN * np.abs(one.weights) + 0.02 * self._unit, _COMMON)

    def observe(self, work: StepWork, phases: dict[str, float], gap: float | None) -> None:
        """Takes a step's phases in. `phases` has the step's own extend, `gap` the seconds in which the lane waited
        before it, if they are known.
        """
        drafts = work.levels > 0
        self._verify.observe(work, phases.get("verify", 0.0) + phases.get("accept", 0.0))
        if drafts:
            self._draft.update(self._draft_features(work), phases.get("draft", 0.0))
        if work.pairs and "extend" in phases:
            self._extend.update(self._extend_features(work), phases["extend"])
        if gap is not None:
            self._gap.update(self._gap_features(work.rows, drafts), max(gap, 0.0))

    def observe_prompts(self, work: StepWork, seconds: float) -> None:
        """Takes in a pass over prompts: what tokens cost by now, where steps verify few. `work` counts their tokens,
        and as context what these see on average. Without `like_prompts` it says nothing.
        """
        if self._prompts:
            self._verify.observe(work, seconds / self._prompts)

    def like_prompts(self, tokens: Sequence[float], seconds: Sequence[float]) -> None:
        """What passes over so many tokens of one prompt take, beside passes that verify as many."""
        if not tokens or min(seconds) <= 0.0:
            return
        verify = sum(self._verify.predict(StepWork(1, own, own / 2)) for own in tokens)
        low, high = _PROMPTS
        self._prompts = min(max(sum(seconds) / verify, low), high) if verify > 0.0 else 0.0

    def prompt_token(self) -> float:
        """Reading one more token of a prompt; one that verifies takes as long, until both were compared."""
        more = self._verify.predict(StepWork(1, 1 + _MANY, _MANY / 2))
        return max((more - self._verify.predict(_ONE)) / _MANY, 0.0) * (self._prompts or 1.0)

    def prompt_pass(self) -> float:
        """Reading prompts, beside their tokens: about what one token takes."""
        return self._verify.predict(_ONE) * (self._prompts or 1.0)

    def observe_catch_up(self, behind: float, seconds: float) -> None:
        """Takes in a pass that extended heads by so many tokens at once, be they behind or new as a prompt's."""
        self._two[:] = 1.0, behind / TILE
        self._catch_up.update(self._two, seconds)

    def step(self, work: StepWork) -> float:
        """With the time between steps."""
        return sum(self.phases(work).values()) + self.gap(work)

    def phases(self, work: StepWork) -> dict[str, float]:
        """Seconds by phase of a step of this work."""
        drafts = work.levels > 0
        phases = {"verify": self._verify.predict(work)}
        if drafts:
            phases["draft"] = self._draft.predict(self._draft_features(work))
        if work.pairs:
            phases["extend"] = self._extend.predict(self._extend_features(work))
        return phases

    def gap(self, work: StepWork) -> float:
        """The time between steps, in which the host settles one and decides about the next: more if it drafts."""
        return self._gap.predict(self._gap_features(work.rows, work.levels > 0))

    def plain(self, rows: int, context: float) -> float:
        """A step that drafts nothing and extends no head."""
        return max(self.step(StepWork(rows, rows, context)), 1e-7)

    def table(self, rows: int, context: float, count: int) -> Doubles:
        """[count] seconds of a drafting step over 0, 1, ... nodes but for its draft: of the pass, the time between
        steps, and the head's extend by all nodes but the roots. Valid until the next call; never falls.
        """
        table = self._table[:count]
        self._verify.table(rows, context, self.pair, table)
        table += self._gap.predict(self._gap_features(rows, True)) + self.extend_pass
        np.maximum(table, 1e-7, out=table)
        return table

    def draft(self, levels: float, frontier: float) -> float:
        """Drafting so many levels of so many nodes each."""
        fixed, first, level, node = self.draft_rates()
        return fixed + frontier * first + max(levels - 1.0, 0.0) * (level + frontier * node)

    def draft_rates(self) -> tuple[float, float, float, float]:
        """Seconds of a first level, and what a node adds to it; of each other level, and what a node adds to that."""
        fixed, first, level, node = self._draft.weights.tolist()
        return max(fixed, 0.0), max(first, 0.0) / TILE, max(level, 0.0), max(node, 0.0) / TILE

    def catch_up(self, behind: int) -> float:
        """A pass that extends heads by so many tokens at once. It chooses no drafts, so its tokens take less than those
        of a step; until one was seen, they count as much.
        """
        fixed, token = (self._catch_up if self._catch_up.samples else self._extend).weights.tolist()
        return float(max(fixed, 0.0) + behind * max(token, 0.0) / TILE)

    @property
    def pair(self) -> float:
        """Extending the head by one more token of a step."""
        return max(float(self._extend.weights[1]), 0.0) / TILE

    def several(self, rows: int, context: float) -> float:
        """What one of `rows` rows adds to a verifying pass by having several nodes, beside these."""
        return self._verify.several(rows, context)

    @property
    def extend_pass(self) -> float:
        """What a step's pass of the head costs beside its tokens."""
        return max(float(self._extend.weights[0]), 0.0)

    def _draft_features(self, work: StepWork) -> Doubles:
        nodes, passes = work.frontier / TILE, max(work.levels - 1.0, 0.0)
        self._four[:] = 1.0, nodes, passes, passes * nodes
        return self._four

    def _extend_features(self, work: StepWork) -> Doubles:
        self._two[:] = 1.0, work.pairs / TILE
        return self._two

    def _gap_features(self, rows: int, drafts: bool) -> Doubles:
        self._three[:] = 1.0, rows / TILE, float(drafts)
        return self._three

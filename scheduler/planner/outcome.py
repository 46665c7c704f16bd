"""What the planner chose and what came of it: counters since the start, for the Snapshot.

Written by `goodput`, read by the loop once a second.
"""

from collections import deque
from dataclasses import dataclass, field

from aerie.contracts.messages import PlannerSnapshot
from aerie.contracts.shape import NO_DRAFT, DraftShape

_LONGEST = 1.0
"""A step of more seconds is a machine that slept."""


@dataclass(slots=True)
class Outcome:
    shape: DraftShape = NO_DRAFT
    """Of the last planned step."""
    error: float = 0.0
    """See Survival.error."""
    steps_by_depth: dict[int, int] = field(default_factory=dict)
    predicted_tokens: float = 0.0
    """Over the steps whose real seconds are known; so are the other sums."""
    predicted_seconds: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    plain_tokens: float = 0.0
    """Tokens that plain decoding would have committed in the same time, by the predicted cost of plain steps."""
    regret_tokens: float = 0.0
    """Tokens by which plain decoding would have been ahead, summed over the steps in which it would."""
    resting_seconds: float = 0.0
    _planned: "deque[tuple[float, float, float]]" = field(default_factory=deque)
    _ended: float = 0.0

    def plan(self, shape: DraftShape, rows: int, tokens: float, seconds: float, plain: float) -> None:
        self.shape = shape
        self.steps_by_depth[shape.depth] = self.steps_by_depth.get(shape.depth, 0) + 1
        self._planned.append((tokens, seconds, rows / plain))
        if len(self._planned) > 2:  # a step that was planned and never launched
            self._planned.popleft()

    def settle(self, tokens: int, began: float, ended: float, *, drafted: bool, steady: bool) -> None:
        """`began` and `ended` are the lane's times. The time of a step that is one of a `steady` run starts at the
        answer before it.
        """
        since, self._ended = self._ended if steady else began, ended
        predicted = self._planned.popleft() if self._planned else None
        seconds = ended - since
        if predicted is None or not began or not 0.0 < seconds < _LONGEST:
            return
        self.predicted_tokens += predicted[0]
        self.predicted_seconds += predicted[1]
        self.tokens += tokens
        self.seconds += seconds
        plain = seconds * predicted[2]
        self.plain_tokens += plain
        self.regret_tokens += max(plain - tokens, 0.0)
        self.resting_seconds += 0.0 if drafted else seconds

    def snapshot(self) -> PlannerSnapshot:
        return PlannerSnapshot(
            depth=self.shape.depth,
            topk=self.shape.topk,
            nodes=self.shape.nodes,
            steps_by_depth=dict(self.steps_by_depth),
            predicted_tokens=self.predicted_tokens,
            predicted_seconds=self.predicted_seconds,
            tokens=self.tokens,
            seconds=self.seconds,
            regret_tokens=self.regret_tokens,
            resting_seconds=self.resting_seconds,
            calibration_error=self.error,
        )

"""What the planner chose and what came of it: counters since the start, for the Snapshot.

Written by `goodput` and `lessons`, read by the loop once a second.
"""

from dataclasses import dataclass, field

from aerie.contracts.messages import PlannerSnapshot
from aerie.contracts.shape import NO_DRAFT, DraftShape
from aerie.contracts.step import StepOutput
from aerie.scheduler.planner.samples import Settled

_LONGEST = 1.0
"""A step of more seconds is a machine that slept."""


@dataclass(slots=True)
class Outcome:
    shape: DraftShape = NO_DRAFT
    """Of the last planned step."""
    reason: str = ""
    """Why the last choice was made."""
    gain: float = 0.0
    """Predicted tokens a second of the best draft over those of plain steps, at the last choice; 0 if unknown."""
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
    recomputed: int = 0
    """Rows that computed their tokens again to get head KV."""
    _ended: float = 0.0
    """When the last step of any kind had its answer."""

    def plan(self, shape: DraftShape, steps: int) -> None:
        self.shape = shape
        self.steps_by_depth[shape.depth] = self.steps_by_depth.get(shape.depth, 0) + steps

    def explain(self, reason: str, gain: float) -> None:
        """Says why the last choice was made, and how much faster than plain steps the best draft promised to be."""
        self.reason, self.gain = reason, gain

    def settle(self, step: Settled | None, output: StepOutput, *, steady: bool) -> None:
        """Takes in steps in their order, None for one that decodes nothing. The time of one that is one of a `steady`
        run starts at the answer before it, be that a prompt's.
        """
        seconds = output.ended - (self._ended if steady else output.began)
        self._ended = output.ended
        planned = None if step is None else step.planned
        if step is None or planned is None or not output.began or not 0.0 < seconds < _LONGEST:
            return
        rows, tokens = step.rows, step.tokens
        if planned.rows != rows:
            return
        self.predicted_tokens += planned.tokens
        self.predicted_seconds += planned.seconds
        self.tokens += tokens
        self.seconds += seconds
        plain = seconds * rows / planned.plain
        self.plain_tokens += plain
        self.regret_tokens += max(plain - tokens, 0.0)
        self.resting_seconds += seconds if step.drafts is None else 0.0

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
            recomputed=self.recomputed,
            calibration_error=self.error,
            reason=self.reason,
            gain=self.gain,
        )

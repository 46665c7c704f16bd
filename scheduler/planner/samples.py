"""Settled steps, kept until the planner learns from several at once.

Used by `lessons` and `calibration`. Keeping a step costs a few microseconds; numpy's calls cost as much for one step as
for many, and a step of a small model takes less than a millisecond. `alike` says what a group of them shows.
"""

from dataclasses import dataclass, field

import numpy as np

from aerie.contracts.shape import DraftShape
from aerie.contracts.step import Bools, Longs, StepOutput, StepPlan

_NONE: Longs = np.zeros(0, dtype=np.int64)
_RATE, _MOST = 1 / 64, 0.95
"""What one step counts for in the share of those after prompts; above such a share, they are the usual ones."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What the planner expected of a step."""

    shape: DraftShape
    rows: int
    tokens: float
    seconds: float
    plain: float
    """Seconds of a step that drafts nothing."""
    trial: bool = False
    """Drafted to see whether drafting pays by now."""
    lost: float = 0.0
    """Plain steps that a trial has taken from the budget of all trials."""


@dataclass(slots=True)
class Settled:
    """A decode step that has settled. If it drafted, `rows` are places in the statistics (see `places`); `live` says
    which still have the owner that it was planned for.
    """

    plan: StepPlan
    rows: Longs
    live: Bools
    output: StepOutput
    planned: Planned | None
    phases: dict[str, float]
    gap: float | None = None
    """Seconds from the answer before to its own beside all phases, if they are known."""
    usual: bool = True
    """Whether its times say what steps take. After prompts, which leave little of what it needs in the caches, a step
    takes longer whatever it does: unless nearly all steps come after prompts, it says nothing. Else chance would
    decide how many are among a few plain steps between drafts.
    """

    @property
    def depth(self) -> int:
        return self.plan.decode.depth if self.plan.decode is not None else 0

    @property
    def topk(self) -> int:
        return self.plan.decode.topk if self.plan.decode is not None else 1

    @property
    def behind(self) -> int:
        """Tokens with which heads caught up before it."""
        return 0 if self.plan.behind is None else int(self.plan.behind.sum())


@dataclass(slots=True)
class SettledSteps:
    """Joins the outputs of consecutive steps: a step answers before it extends the head, so its extend comes with the
    next step's times.
    """

    whole: list[Settled] = field(default_factory=list)
    """The decode steps whose times are complete."""
    kept: list[tuple[int, float]] = field(default_factory=list)
    """Of steps that read prompts: tokens whose head KV was kept, and seconds."""
    _reading: int = 0
    """Such tokens of the last step, whose extend is still to come."""
    _last: Settled | None = None
    """The last step, if it decoded."""
    _after_prompts: float = 0.0
    """Share of the last steps that came after prompts."""
    _number: int = -1
    _ended: float = 0.0

    @property
    def waiting(self) -> Longs:
        """`rows` of the step whose times are not complete yet, if it drafted."""
        return _NONE if self._last is None or not self._last.depth else self._last.rows

    def take(
        self,
        plan: StepPlan,
        rows: Longs,
        live: Bools,
        output: StepOutput,
        planned: Planned | None = None,
        *,
        waited: bool,
    ) -> None:
        """Takes steps in order. `waited` says whether the step was launched while another was in flight, so that what
        passed beside the phases was the loop's own: work between them, and what the host, the server and its clients
        took from a busy machine. The gap counts after a step that drafted as this one does, or not: at a change the
        host does the work of both.
        """
        phases = dict(output.phase_seconds)
        worked = sum(phases.values())
        late = phases.pop("extend", None)
        successive = output.number == self._number + 1
        if self._last is not None and successive:
            if late is not None:
                self._last.phases["extend"] = late
            self.whole.append(self._last)
        if self._reading and successive and late is not None:
            self.kept.append((self._reading, late))
        self._reading = 0 if plan.prefill is None else int(plan.prefill.counts[plan.drafting].sum())
        step = Settled(plan, rows, live, output, planned, phases) if plan.decode is not None else None
        if step is not None:
            after = successive and self._last is None and self._number >= 0
            self._after_prompts += _RATE * (after - self._after_prompts)
            step.usual = not after or self._after_prompts > _MOST
        known = successive and waited and output.ended > 0.0 and self._ended > 0.0
        if known and step is not None and self._last is not None and (step.depth > 0) == (self._last.depth > 0):
            step.gap = max(output.ended - self._ended - worked, 0.0)
        self._last = step
        self._number, self._ended = output.number, output.ended

"""Settled steps, kept until the planner learns from several at once.

Used by `lessons` and `calibration`. Keeping a step costs a few microseconds; numpy's calls cost as much for one step as
for many, and a step of a small model takes less than a millisecond. Of steps that draft nothing only numbers are kept:
many of them are learned from at once, and to walk over the arrays of all takes longer than a step. `alike` says what a
group of them shows.
"""

from dataclasses import dataclass, field

import numpy as np

from aerie.contracts.shape import DraftShape
from aerie.contracts.step import Bools, DecodeWork, Longs, StepOutput, StepPlan

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


@dataclass(frozen=True, slots=True)
class Drafts:
    """What a step drafted, and what came of it."""

    places: Longs
    """[rows] places of the owners in the statistics (see `places`)."""
    live: Bools
    """[rows] whether they still are the owners that it was planned for."""
    plan: StepPlan
    work: DecodeWork
    output: StepOutput


@dataclass(slots=True)
class Settled:
    """A decode step that has settled."""

    rows: int
    tokens: int
    """Committed."""
    context: int
    """Tokens that its rows hold after it."""
    drafts: Drafts | None
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
    def topk(self) -> int:
        """0 if it drafted nothing."""
        return 0 if self.drafts is None else self.drafts.work.topk

    @property
    def behind(self) -> int:
        """Tokens with which heads caught up before it."""
        behind = None if self.drafts is None else self.drafts.plan.behind
        return 0 if behind is None else int(behind.sum())


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
        """Places of the step whose times are not complete yet, if it drafted."""
        return _NONE if self._last is None or self._last.drafts is None else self._last.drafts.places

    def take(
        self,
        plan: StepPlan,
        rows: Longs,
        live: Bools,
        output: StepOutput,
        planned: Planned | None = None,
        *,
        waited: bool,
    ) -> Settled | None:
        """Takes steps in order; returns a decode step as it is kept. `waited` says whether the step was launched while
        another was in flight, so that what passed beside the phases was the loop's own: work between them, and what
        the host, the server and its clients took from a busy machine. The gap counts after a step that drafted as this
        one does, or not: at a change the host does the work of both.
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
        step = None if plan.decode is None else _settled(plan, plan.decode, rows, live, output, planned, phases)
        if step is not None:
            after = successive and self._last is None and self._number >= 0
            self._after_prompts += _RATE * (after - self._after_prompts)
            step.usual = not after or self._after_prompts > _MOST
        known = successive and waited and output.ended > 0.0 and self._ended > 0.0
        last, self._last = self._last, step
        if known and step is not None and last is not None and (step.drafts is None) == (last.drafts is None):
            step.gap = max(output.ended - self._ended - worked, 0.0)
        self._number, self._ended = output.number, output.ended
        return step


def _settled(
    plan: StepPlan,
    work: DecodeWork,
    rows: Longs,
    live: Bools,
    output: StepOutput,
    planned: Planned | None,
    phases: dict[str, float],
) -> Settled:
    drafts = Drafts(rows, live, plan, work, output) if work.depth else None
    # Python sums up few numbers in less time than numpy.
    tokens, context = sum(output.counts.tolist()), sum(output.lengths.tolist())
    return Settled(len(rows), tokens, context, drafts, planned, phases)

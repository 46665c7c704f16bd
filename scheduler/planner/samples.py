"""Settled steps, kept until the planner learns from several at once, and what a group of like steps shows.

Used by `lessons` and `calibration`. Keeping a step costs a few microseconds; numpy's calls cost as much for one step as
for many, and a step of a small model takes less than a millisecond.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from aerie.contracts.shape import DraftShape
from aerie.contracts.step import Bools, Ints, Longs, StepOutput, StepPlan
from aerie.scheduler.planner.costs import StepWork

_NONE: Longs = np.zeros(0, dtype=np.int64)
_PAUSE = 3.0
"""A time of so many medians is cut there: the machine paused."""


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
    next step's times. `whole` are the steps whose times are complete.
    """

    whole: list[Settled] = field(default_factory=list)
    _last: Settled | None = None
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
        step = Settled(plan, rows, live, output, planned, phases) if plan.decode is not None else None
        known = successive and waited and output.ended > 0.0 and self._ended > 0.0
        if known and step is not None and self._last is not None and (step.depth > 0) == (self._last.depth > 0):
            step.gap = max(output.ended - self._ended - worked, 0.0)
        self._last = step
        self._number, self._ended = output.number, output.ended


class Alike:
    """Settled steps of equally many rows, all of which drafted or none."""

    def __init__(self, steps: Sequence[Settled]) -> None:
        self.steps = steps
        self.count = len(steps)
        self.rows = len(steps[0].rows)
        self.drafts = steps[0].depth > 0
        self.topk = steps[0].topk
        self.counts = np.array([step.output.counts for step in steps])  # [steps, rows]

    @property
    def tokens(self) -> int:
        return int(self.counts.sum())

    @property
    def late_steps(self) -> int:
        """Steps before which heads caught up."""
        return sum(step.behind > 0 for step in self.steps)

    @property
    def behind(self) -> float:
        """Mean tokens with which heads caught up, of those steps."""
        return sum(step.behind for step in self.steps) / max(self.late_steps, 1)

    def work(self) -> StepWork:
        """The mean."""
        rows, count = self.rows, self.count
        context = (self.steps[0].output.lengths.sum() + self.steps[-1].output.lengths.sum()) / 2
        if not self.drafts:
            return StepWork(rows, rows, float(context))
        drafted = np.array([step.output.drafted for step in self.steps])
        levels = drafted.max(axis=1).mean() if self.topk == 1 else sum(step.depth for step in self.steps) / count
        return StepWork(
            rows=rows,
            tokens=rows + float(drafted.sum()) / count,
            context=float(context),
            levels=float(levels),
            frontier=float(np.count_nonzero(self._nodes() > 1)) / count * self.topk,
            pairs=sum(extending(step.plan, step.output) for step in self.steps) / count,
        )

    def _nodes(self) -> Ints:
        """[steps, rows] nodes that were planned; 1 in rows that do not draft."""
        return np.array(
            [np.where(s.plan.drafting, s.plan.decode.nodes, 1) for s in self.steps if s.plan.decode is not None]
        )

    def times(self) -> tuple[dict[str, float], float | None]:
        """Mean seconds by phase, and of the gap before a step; pauses are cut."""
        if self.count == 1:
            return dict(self.steps[0].phases), self.steps[0].gap
        names = {name for step in self.steps for name in step.phases}
        phases = {
            name: without_pauses([step.phases[name] for step in self.steps if name in step.phases])
            for name in sorted(names)
        }
        gaps = [step.gap for step in self.steps if step.gap is not None]
        return phases, without_pauses(gaps) if gaps else None


def extending(plan: StepPlan, output: StepOutput) -> int:
    """Tokens of the pass that extends the head after a decode step: all nodes of chains, one path of each tree."""
    work = plan.decode
    assert work is not None
    if work.topk > 1:
        return int(np.count_nonzero(plan.drafting)) * (1 + work.depth)
    return int((1 + output.drafted[plan.drafting]).sum())


def alike(steps: Sequence[Settled]) -> list[Alike]:
    """Groups steps of equally many rows and children, drafting or not."""
    groups: dict[tuple[int, int], list[Settled]] = {}
    for step in steps:
        groups.setdefault((len(step.rows), step.topk if step.depth else 0), []).append(step)
    return [Alike(group) for group in groups.values()]


def without_pauses(seconds: Sequence[float]) -> float:
    """The mean of times, each cut at a few medians."""
    most = _PAUSE * statistics.median(seconds)
    return sum(min(one, most) for one in seconds) / len(seconds)

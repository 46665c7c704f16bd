"""What a group of like steps shows: its mean work, and what that took.

Used by `lessons` and `calibration`.
"""

import statistics
from collections.abc import Sequence

import numpy as np

from aerie.scheduler.planner.accepted import depths_of, levels_of
from aerie.scheduler.planner.samples import Settled
from aerie.scheduler.planner.sizes import size_of
from aerie.scheduler.planner.work import StepWork

_PAUSE, _PLAIN_PAUSE = 3.0, 1.5
"""A time of so many medians is cut there: the machine paused. Of plain steps, which all do the same, at fewer: few of
them tell what plain decoding would take.
"""
_ENOUGH = 64
"""Of more steps than these, some tell what all take."""


class Alike:
    """Settled steps of about equally many rows, all of which drafted or none. Only usual ones show what steps take,
    where there are any.
    """

    def __init__(self, steps: Sequence[Settled]) -> None:
        self.steps = steps
        self.count = len(steps)
        usual = [step for step in steps if step.usual]
        self._timed = usual or steps
        self.shown = len(usual)
        """Steps that show what they take."""
        self._rows = sum(step.rows for step in self._timed) / len(self._timed)
        self.rows = round(self._rows)
        self.drafts = steps[0].drafts is not None
        self.tokens = sum(step.tokens for step in steps)

    @property
    def late_steps(self) -> int:
        """Steps before which heads caught up."""
        return sum(step.behind > 0 for step in self.steps)

    @property
    def behind(self) -> float:
        """Mean tokens with which heads caught up, of those steps."""
        return sum(step.behind for step in self.steps) / max(self.late_steps, 1)

    def work(self) -> StepWork:
        """The mean of those whose times count."""
        steps, count = self._timed, len(self._timed)
        context = (steps[0].context + steps[-1].context) / 2
        drafts = [step.drafts for step in steps if step.drafts is not None]
        if not drafts:
            return StepWork(self.rows, self._rows, context)
        topk = drafts[0].work.topk
        planned, levels = levels_of(drafts)
        nodes = np.concatenate([one.work.nodes for one in drafts])  # [rows of all steps], as the next two
        drafting = np.concatenate([one.plan.drafting for one in drafts])
        drafted = np.concatenate([one.output.drafted for one in drafts])
        extending = drafted if topk == 1 else depths_of(drafts)  # all nodes of chains, one path of each tree
        return StepWork(
            rows=self.rows,
            tokens=self._rows + float(drafted.sum()) / count,
            context=context,
            levels=float((levels if topk == 1 else planned).mean()),
            frontier=float(np.count_nonzero(drafting & (nodes > 1))) / count * topk,
            pairs=float((1 + extending[drafting]).sum()) / count,
        )

    def times(self) -> tuple[dict[str, float], float | None]:
        """Mean seconds by phase, and of the gap before a step, of _ENOUGH steps that lie apart; pauses are cut."""
        steps = self._timed[:: -(-len(self._timed) // _ENOUGH)]
        if len(steps) == 1:
            return dict(steps[0].phases), steps[0].gap
        names = {name for step in steps for name in step.phases}
        most = _PAUSE if self.drafts else _PLAIN_PAUSE
        phases = {
            name: without_pauses([step.phases[name] for step in steps if name in step.phases], most)
            for name in sorted(names)
        }
        gaps = [step.gap for step in steps if step.gap is not None]
        return phases, without_pauses(gaps) if gaps else None


def alike(steps: Sequence[Settled]) -> list[Alike]:
    """Groups steps of about equally many rows and of equally many children, drafting or not."""
    groups: dict[tuple[int, int], list[Settled]] = {}
    for step in steps:
        groups.setdefault((size_of(step.rows), step.topk), []).append(step)
    return [Alike(group) for group in groups.values()]


def without_pauses(seconds: Sequence[float], most: float = _PAUSE) -> float:
    """The mean of times, each cut at so many medians."""
    cut = most * statistics.median(seconds)
    return sum(min(one, cut) for one in seconds) / len(seconds)

"""The planned steps: what was expected of those in flight, and all that goes by the number of steps.

Used by `goodput`. A step at rest is only put down: a plain step of a small model leaves the host little time. All that
goes by steps hears of many at once, before anything asks it.
"""

from collections import deque

from aerie.contracts.shape import NO_DRAFT, DraftShape
from aerie.scheduler.planner.comparing import Comparing
from aerie.scheduler.planner.exploring import Exploring
from aerie.scheduler.planner.held import Held
from aerie.scheduler.planner.keeping import Keeping
from aerie.scheduler.planner.outcome import Outcome
from aerie.scheduler.planner.samples import Planned
from aerie.scheduler.planner.survival import FORGET_STEPS, Survival
from aerie.scheduler.planner.trials import Trials


class PlannedSteps:
    def __init__(
        self,
        survival: Survival,
        trials: Trials,
        comparing: Comparing,
        exploring: Exploring,
        keeping: Keeping,
        outcome: Outcome,
    ) -> None:
        self._survival = survival
        self._trials = trials
        self._comparing = comparing
        self._exploring = exploring
        self._keeping = keeping
        self._outcome = outcome
        self._flying: deque[Planned] = deque(maxlen=2)
        self._rests = self._rows = 0
        """Steps at rest of which nothing has heard yet, and the rows of the last one."""

    def rest(self, held: Held, rows: int) -> None:
        """A step of `rows` rows drafts nothing by a choice that still holds."""
        self._put(held, rows)
        self._rests += 1
        self._rows = rows

    def note(self, held: Held, rows: int, shape: DraftShape) -> None:
        """A step of `rows` rows has this shape."""
        self.tell()
        self._put(held, rows)
        self._count(rows, shape, trial=held.planned.trial, steps=1)

    def tell(self) -> None:
        """Has all hear of the steps at rest."""
        steps, self._rests = self._rests, 0
        if steps:
            self._count(self._rows, NO_DRAFT, trial=False, steps=steps)

    def settle(self) -> Planned | None:
        """What was expected of the decode step that has settled, if it was planned."""
        return self._flying.popleft() if self._flying else None

    def _put(self, held: Held, rows: int) -> None:
        held.step()
        self._flying.append(held.planned_for(rows))

    def _count(self, rows: int, shape: DraftShape, *, trial: bool, steps: int) -> None:
        drafts, keeping, before = shape.drafts, self._keeping, self._trials.since
        self._trials.note(drafts=drafts, trial=trial, steps=steps)
        self._exploring.note(
            rows, drafts=drafts, trial=trial, promised=keeping.promised, cost=keeping.cost, steps=steps
        )
        self._comparing.note(drafts=drafts)
        self._survival.offsets.now += steps
        if self._trials.since // FORGET_STEPS > before // FORGET_STEPS:
            self._survival.forget()
        self._outcome.plan(shape, steps)

"""What settled steps teach, learned from several at once: costs, survival, the guard's account, the trials' budget.

Used by `goodput`: it keeps each settled step, and learns before each new choice. Trials pay for what they lost. What
rows accept is learned at once; what steps take, which changes slowly, from ENOUGH steps, at rest from MOST, or once a
trial is among them. A step is only put down when it settles: after a step of the lane no code is in the caches, and the
first of several steps takes several times as long to look at as the others.
"""

import math
from dataclasses import dataclass

from aerie.contracts.shape import DraftShape
from aerie.contracts.step import Bools, Longs, PrefillWork, StepOutput, StepPlan
from aerie.scheduler.planner.accepted import labels_of
from aerie.scheduler.planner.alike import Alike, alike, without_pauses
from aerie.scheduler.planner.chains import Chains
from aerie.scheduler.planner.costs import StepCosts
from aerie.scheduler.planner.guard import WORST, Guard
from aerie.scheduler.planner.outcome import Outcome
from aerie.scheduler.planner.places import Places
from aerie.scheduler.planner.samples import Drafts, Planned, SettledSteps
from aerie.scheduler.planner.survival import Survival
from aerie.scheduler.planner.trials import Trials
from aerie.scheduler.planner.work import StepWork

FIRST, ENOUGH, MOST = 64, 32, 256
"""The first steps' times are learned before each choice, later ones' from so many steps; from more if none drafted: no
choice hangs on what plain steps take to a percent, and the host has little time for it. No more are kept: no choice
comes where no row may draft.
"""
_TOGETHER = 8
"""Settled steps that are put down at most: to take in many at once would keep the device waiting."""
_LONGEST_GAP = 3.0
"""A gap of so many predicted ones is cut there in the guard's account: the loop was away."""


@dataclass(slots=True)
class _Prompts:
    """Sums over passes that read prompts, taught as one pass of the mean."""

    passes: int = 0
    rows: int = 0
    tokens: int = 0
    context: float = 0.0
    seconds: float = 0.0

    def add(self, work: PrefillWork, seconds: float) -> None:
        tokens = int(work.counts.sum())
        self.passes += 1
        self.rows += len(work.counts)
        self.tokens += tokens
        self.context += int(work.starts.sum()) + tokens / 2
        self.seconds += seconds

    def teach(self, costs: StepCosts) -> None:
        count = self.passes
        if count:
            work = StepWork(round(self.rows / count), self.tokens / count, self.context / count)
            costs.observe_prompts(work, self.seconds / count)


class Lessons:
    def __init__(
        self,
        costs: StepCosts,
        survival: Survival,
        places: Places,
        guard: Guard,
        trials: Trials,
        chains: Chains,
        trees: list[DraftShape],
        outcome: Outcome,
    ) -> None:
        self.ahead = False
        """Whether the last trial was ahead of plain steps, so that another may follow at once."""
        self.labels = 0
        """Of the rows of kept steps, so many have not taught yet what they accept."""
        self._costs = costs
        self._survival = survival
        self._places = places
        self._guard = guard
        self._trials = trials
        self._chains = chains
        self._outcome = outcome
        self._families = {shape.topk: family for family, shape in reversed(list(enumerate(trees, start=1)))}
        self._taken: list[tuple[StepPlan, Longs, Bools, StepOutput, Planned | None, bool]] = []
        """Steps that are put down, in their order."""
        self._steps = SettledSteps()
        self._prompts = _Prompts()
        self._labelled = 0
        """Of the steps that are kept, so many have taught what rows accept."""
        self._drafted = False
        """Whether any of them drafted."""
        self._timed = 0
        """Steps that have taught what they take."""

    def take(
        self,
        plan: StepPlan,
        rows: Longs,
        live: Bools,
        output: StepOutput,
        planned: Planned | None,
        *,
        steady: bool,
    ) -> None:
        """Puts a step down; `live` says which rows still have the owner that they were planned for."""
        if plan.decode is not None and plan.decode.depth:
            rows = self._places.of(rows)  # which change with the rows' owners
            self.labels += len(rows)
        self._taken.append((plan, rows, live, output, planned, steady))
        if self.labels > self._survival.most - len(rows):
            self.learn()

    def keep_up(self) -> None:
        """Takes in what several steps have left."""
        if len(self._taken) >= _TOGETHER:
            self.take_in()

    @property
    def full(self) -> bool:
        """Whether no more steps are kept before it learns."""
        return len(self._steps.whole) >= MOST

    def take_in(self) -> None:
        """Looks at the steps that are put down: what came of them, and what they may teach."""
        taken, self._taken = self._taken, []
        for plan, rows, live, output, planned, steady in taken:
            if plan.prefill is not None:
                self._prompts.add(plan.prefill, output.phase_seconds.get("prefill", 0.0))
            step = self._steps.take(plan, rows, live, output, planned, waited=steady)
            self._drafted |= step is not None and step.drafts is not None
            self._outcome.settle(step, output, steady=steady)

    @property
    def _enough(self) -> int:
        return ENOUGH if self._drafted else MOST

    def learn_labels(self) -> None:
        """Takes in what rows have accepted since the last time."""
        self.take_in()
        found = [step.drafts for step in self._steps.whole[self._labelled :] if step.drafts is not None]
        self._labelled, self.labels = len(self._steps.whole), len(self._steps.waiting)
        for topk in dict.fromkeys(one.work.topk for one in found):
            self._learn_labels([one for one in found if one.work.topk == topk], topk)
        self._places.learned(self._steps.waiting)

    def learn(self) -> None:
        """Learns all that is to be learned by now: at rest seldom anything."""
        rests = not (self.labels or self._drafted)
        if rests and self._timed >= FIRST and len(self._taken) + len(self._steps.whole) < MOST:
            return
        self.learn_labels()
        steps = self._steps.whole
        tried = any(step.planned is not None and step.planned.trial for step in steps)
        if tried or self._timed < FIRST or len(steps) >= self._enough:
            self._steps.whole, self._labelled, self._drafted = [], 0, False
            self._timed += len(steps)
            self._prompts.teach(self._costs)
            self._prompts = _Prompts()
            self._learn_head_kv()
            for group in alike(steps):
                self._learn_times(group)

    def _learn_head_kv(self) -> None:
        kept, self._steps.kept = self._steps.kept, []
        if kept:
            tokens, seconds = zip(*kept, strict=True)
            self._costs.observe_catch_up(sum(tokens) / len(kept), without_pauses(seconds))

    def _learn_times(self, group: Alike) -> None:
        costs, guard = self._costs, self._guard
        work, (phases, gap) = group.work(), group.times()
        late = phases.pop("catch_up", 0.0)
        expected = costs.gap(work)
        wait = expected if gap is None else min(max(gap, 0.0), _LONGEST_GAP * expected)
        seconds = sum(phases.values()) + wait
        if phases and costs.ready:
            if group.shown:
                guard.compare(group.rows, costs.step(work), seconds, drafts=group.drafts, steps=group.shown)
            plain = guard.corrected(costs.plain(group.rows, work.context), group.rows, drafts=False)
            gained = guard.settle(
                group.rows,
                group.count,
                group.tokens,
                seconds * group.count + late * group.late_steps,
                plain,
                drafts=group.drafts,
            )
            if self._settle_trials(group, wait, plain):
                self.ahead = group.drafts and gained > 0.0
        if group.shown:
            costs.observe(work, phases, gap)
        if late:
            costs.observe_catch_up(group.behind, late)

    def _settle_trials(self, group: Alike, wait: float, plain: float) -> bool:
        """Books what the trials of a group really lost. Whether there are any."""
        tried = [(step, step.planned) for step in group.steps if step.planned is not None and step.planned.trial]
        for step, planned in tried:
            seconds = sum(step.phases.values()) + wait
            lost = seconds / plain - step.tokens / group.rows if plain > 0.0 else 0.0
            self._trials.settle(planned.lost, min(lost, WORST) if math.isfinite(lost) else 0.0)
        return bool(tried)

    def _learn_labels(self, drafts: list[Drafts], topk: int) -> None:
        family = 0 if topk == 1 else self._families.get(topk, -1)
        if family < 0:
            return
        labels = labels_of(drafts)
        self._survival.observe(labels.rows, labels.accepted, labels.planned, family, steps=len(drafts))
        if family == 0:
            self._chains.note_reach(drafts, labels)

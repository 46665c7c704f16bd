"""The planner: decides before each decode step which rows draft, how deep and how many nodes, or that none does.

Called by the policy with what is known then, which is one step late. Nothing is drafted unless it promises more tokens
a second than plain decoding, but for a few trials (`trials`). A choice is held for a few steps while the same rows run,
and what their steps teach is learned at once: a step of a small model could not pay for either. It is learned in the
step before the next choice, since a step of the device hides the time of one of the two, but may not hide both. Steps
that commit far more or fewer tokens than expected end a choice early, and are learned from at once.
"""

from collections.abc import Sequence

import numpy as np

from aerie.contracts.shape import NO_DRAFT, DraftShape, chain_depths
from aerie.contracts.spec_section import SpecConfig
from aerie.contracts.step import Bools, Ints, Longs, StepOutput, StepPlan
from aerie.scheduler.planner.candidates import Batch, Candidates
from aerie.scheduler.planner.chains import Chains
from aerie.scheduler.planner.choice import Chosen, Objective
from aerie.scheduler.planner.comparing import COMPARED, Comparing
from aerie.scheduler.planner.costs import StepCosts
from aerie.scheduler.planner.exploring import Exploring
from aerie.scheduler.planner.guard import Guard
from aerie.scheduler.planner.held import HELD, HOLD, NO_HEADS, REST, Held, rest
from aerie.scheduler.planner.keeping import Asked, Keeping
from aerie.scheduler.planner.lessons import Lessons
from aerie.scheduler.planner.outcome import Outcome
from aerie.scheduler.planner.places import Places
from aerie.scheduler.planner.planned_steps import PlannedSteps
from aerie.scheduler.planner.predictions import MARGIN, Predictions
from aerie.scheduler.planner.samples import Planned
from aerie.scheduler.planner.survival import Survival
from aerie.scheduler.planner.trials import PROBE_STEPS, TRIED, Trials


class Goodput:
    """Plans for `rows` rows. `shapes` are those of the config; the device has room for the largest of them."""

    def __init__(self, spec: SpecConfig, costs: StepCosts, shapes: list[DraftShape], *, rows: int) -> None:
        self.costs = costs
        self._outcome = Outcome()
        self.guard = Guard()
        self._exploring = Exploring(self.guard)
        trees = list(dict.fromkeys(shape for shape in shapes if shape.topk > 1 and shape.drafts))
        depths = chain_depths(shapes)
        deepest = max([depths[-1], *(shape.depth for shape in trees)])
        self._places = Places(rows)
        widths = [1, *(shape.topk for shape in trees)]
        self.survival = Survival(self._places.count, widths, deepest, most=HELD * max(rows, 8))
        unsure = spec.confidence_threshold > 0
        self.chains = Chains(costs, depths, Objective(spec.objective), rows=rows, unsure=unsure)
        self._predicted = Predictions(costs, self.guard)
        self._candidates = Candidates(self.chains, self.survival, trees, rows=rows)
        self._trials = Trials()
        self._lessons = Lessons(
            costs, self.survival, self._places, self.guard, self._trials, self.chains, trees, self._outcome
        )
        self._keeping = Keeping(
            costs, self.chains, self.survival, self._predicted, self._trials, self._exploring, self._learn_at_rest
        )
        self._by_row: Ints = np.ones(rows, dtype=np.int32)
        """Nodes of each row by the choice that holds; of rows that it did not know, the usual ones."""
        self._nodes: Ints = np.ones(rows, dtype=np.int32)
        self._held: Held | None = None
        self._learned = -1
        """The step in which lessons were last learned for a choice; -1 once another has shown something new."""
        self._comparing = Comparing()
        self._planned = PlannedSteps(
            self.survival, self._trials, self._comparing, self._exploring, self._keeping, self._outcome
        )

    @property
    def outcome(self) -> Outcome:
        """What it chose, and what came of it by now."""
        self._planned.tell()
        self._lessons.take_in()
        return self._outcome

    def begin(self, row: int, temperature: float, *, headed: bool) -> None:
        """A row gets a new owner, which may draft or not."""
        self._planned.tell()
        if not self._places.free(row):
            self._lessons.learn_labels()
        self.survival.begin(self._places.begin(row), temperature)
        held = self._held
        if held is not None and (headed or held.planned.shape.drafts):
            held.hurry()
            self._by_row[row] = held.usual

    def end(self, answers: Sequence[int]) -> None:
        """Answers of so many tokens have ended."""
        for tokens in answers:
            self._keeping.answers.end(tokens)

    def pays(self, asked: Asked, *, headed: int) -> bool:
        """Whether a request keeps head KV, as so many rows do: see `keeping`."""
        self._planned.tell()
        return self._keeping.pays(asked, headed=headed, drafting=self._drafting(headed))

    def recomputes(self, asked: Asked, *, headed: int) -> bool:
        """Whether a row without head KV computes its tokens again to get it: see `keeping`."""
        self._planned.tell()
        pays = self._keeping.recomputes(asked, drafting=self._drafting(headed))
        self._outcome.recomputed += pays
        return pays

    def _drafting(self, headed: int) -> int:
        """How many rows draft now, of so many that may."""
        return headed if self._held is not None and self._held.planned.shape.drafts else 0

    def rests(self, headed: Longs, rows: int) -> bool:
        """Whether a step of `rows` rows, of which the `headed` ones may draft, drafts nothing by a choice that still
        holds. Otherwise `decide` must be asked.
        """
        held = self._held
        if held is None or not held.rests(headed, rows):
            return False
        self._planned.rest(held, rows)
        return True

    def decide(
        self, headed: Longs, most: Ints, rows: int, context: int, behind: int, *, last: bool = False
    ) -> tuple[DraftShape, Ints]:
        """The shape of a step of `rows` rows, and the nodes of each of the `headed` ones, which may draft.

        `most` [h]: the most nodes beyond the root that a row can use. `behind`: tokens with which heads must first be
        extended. `last`: whether some row could not come back after one more step at rest. The nodes are valid until
        the next call.
        """
        held = self._held
        if held is None or last or not (held.holds(headed, rows) or held.suits(headed, rows)):
            self._learn()
            self._outcome.error = self.survival.error
            batch = Batch(headed, self._places.of(headed), most, rows, context, behind, last)
            held = self._held = self._choice(batch).after(held)
            self._by_row.fill(held.usual)
            self._by_row[headed] = held.nodes
        nodes = self._nodes[: len(headed)]
        self._by_row.take(headed, out=nodes, mode="clip")
        np.minimum(nodes, most + 1, out=nodes)
        shape = held.planned.shape
        if shape.drafts:
            widest = int(np.maximum.reduce(nodes))
            if widest == 1:  # all are about to end
                shape = NO_DRAFT
            elif shape.topk == 1 and widest != shape.nodes:
                shape = DraftShape(widest - 1, 1, widest)
        self._planned.note(held, rows, shape)
        if shape.drafts:
            self.survival.offsets.draft(self._places.of(headed[nodes > 1]), first=held.age == 1)
        return shape, nodes

    def settle(self, plan: StepPlan, rows: Longs, live: Bools, output: StepOutput, *, steady: bool) -> None:
        """Takes in a settled step; `live` says which rows still have the owner that they were planned for."""
        planned = None if plan.decode is None else self._planned.settle()
        if planned is not None and planned.shape.drafts:
            self._watch(planned, plan, output)
        self._lessons.take(plan, rows, live, output, planned, steady=steady)

    def prepare(self) -> None:
        """Does what is due before the next choice, when a step was launched: the device has two to run meanwhile."""
        self._lessons.keep_up()
        if self._lessons.full or (self._held is not None and self._held.ends):
            self._learn()

    def _learn(self) -> None:
        self._planned.tell()
        if self._learned != self.survival.offsets.now:
            self._lessons.learn()
            self._learned = self.survival.offsets.now

    def _watch(self, planned: Planned, plan: StepPlan, output: StepOutput) -> None:
        """Has the next choice made at once if a step that drafted has shown something new."""
        tokens, held = int(output.counts.sum()), self._held
        if planned.trial:
            assert plan.decode is not None
            drafted = int((plan.decode.nodes - 1).sum())
            if self._trials.show(planned.tokens - planned.rows, tokens - len(output.counts), drafted):
                self._held, self._learned = None, -1
        elif held is not None and held.planned is planned and held.surprised(tokens):
            held.end()
            self._learned = -1

    def _learn_at_rest(self) -> None:
        """While nothing is drafted, choices are too few to learn by what a trial has shown."""
        if self._held is not None and not self._held.planned.shape.drafts and self._lessons.labels:
            self._lessons.learn()

    def _choice(self, batch: Batch) -> Held:
        """The best shape for these rows by all that is known."""
        rows, plain = batch.rows, self._predicted.plain(batch.rows, batch.context)
        if not len(batch.headed) or not self.costs.ready or int(batch.most.max()) < 1:
            reason = "no request may draft" if self.costs.ready else "costs are not known"
            return self._resting(batch, plain, reason, 0.0, NO_HEADS)
        chosen, shape = self._candidates.best(batch)
        kept = self._keeping.answers.kept(chosen.tokens / rows)
        gain = kept * self._predicted.gain(chosen, rows, plain)
        if self._comparing.due(gain):
            return self._resting(batch, plain, "measures plain steps", gain, COMPARED)
        allowed = self.guard.allows(rows)
        trial = not allowed or gain <= 1.0 + (MARGIN if self._trials.since else 0.0)
        nodes = self._candidates.nodes(chosen, shape, batch)
        lost, why = 0.0, "tries whether drafts pay" if trial else "drafts promise more"
        if trial and self._lessons.ahead:
            self._lessons.ahead = False
        elif trial and self._exploring.drafts(len(batch.headed), rows):
            trial, shape, kept, why = False, TRIED, 1.0, "learns what drafts cost"
            nodes = np.minimum(batch.most + 1, np.int32(TRIED.nodes))
            chosen = self._candidates.shallow(nodes, batch) or chosen
        elif trial:
            found = self._trial(nodes, batch, plain)
            if isinstance(found, int):
                reason = "plain steps promise more" if allowed else "drafts were behind plain steps"
                steps = REST if self._trials.heads > 1 else rest(rows)
                return self._resting(batch, plain, reason, gain, max(steps, found), wait=found)
            chosen, nodes, lost = found
            shape, kept = TRIED, 1.0
        if shape.topk == 1:
            shape = DraftShape(int(nodes.max()) - 1, 1, int(nodes.max()))
        self._outcome.explain(why, gain)
        planned = Planned(shape, rows, kept * chosen.tokens, self._predicted.seconds(chosen, rows), plain, trial, lost)
        full = self._candidates.chains_only and int(nodes.min()) > self.chains.depths[-1]
        return Held(planned, batch.headed, nodes, 1 if trial else HOLD, full)

    def _resting(self, batch: Batch, plain: float, reason: str, gain: float, steps: int, *, wait: int = 0) -> Held:
        """Nothing is drafted for so many steps, in `wait` of which nothing can be."""
        self._outcome.explain(reason, gain)
        planned = Planned(NO_DRAFT, batch.rows, batch.rows, plain, plain)
        return Held(planned, batch.headed, np.ones(len(batch.headed), dtype=np.int32), steps, wait=wait)

    def _trial(self, nodes: Ints, batch: Batch, plain: float) -> tuple[Chosen, Ints, float] | int:
        """The draft to try, its nodes, and the plain steps that it is expected to lose; or, if none is due or can be
        afforded, the steps in which surely none can be. One is due for rows of which little is known, if drafting would
        pay for lucky ones; for those that `nodes` [h] of the best draft has, after a while, or before some row could
        not come back.
        """
        lucky, own = self._candidates.lucky(batch)
        if self._predicted.gain(lucky, batch.rows, plain) > 1.0 + MARGIN:
            nodes = own
        elif not (batch.last or self._trials.since >= PROBE_STEPS):
            return 0
        elif self._trials.heads > 1:  # all say more than the best one
            nodes = batch.most + 1
        nodes = np.minimum(nodes, np.int32(TRIED.nodes))
        chosen = self._candidates.shallow(nodes, batch)
        if chosen is None:
            return 0
        seconds = self._predicted.seconds(chosen, batch.rows) + self.chains.catching_up(batch.behind)
        lost = max(seconds / plain - chosen.tokens / batch.rows, 0.0)
        return (chosen, nodes, lost) if self._trials.afford(lost) else self._trials.wait(lost)

"""The planner: decides before each decode step which rows draft, how deep and how many nodes, or that none does.

Called by the policy with what is known then, which is one step late. Nothing is drafted unless it promises more tokens
a second than plain decoding, but for a few trials (`trials`). A choice is held for a few steps while the same rows run,
and what their steps teach is learned at once before the next choice: a step of a small model could not pay for either.
Steps that commit far more or fewer tokens than expected end a choice early.
"""

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from aerie.contracts.shape import NO_DRAFT, DraftShape
from aerie.contracts.spec_section import SpecConfig
from aerie.contracts.step import Bools, Ints, Longs, StepOutput, StepPlan
from aerie.scheduler.planner.chains import Chains, chain_depths
from aerie.scheduler.planner.choice import Chosen, Objective
from aerie.scheduler.planner.costs import StepCosts
from aerie.scheduler.planner.guard import Guard
from aerie.scheduler.planner.lessons import Lessons
from aerie.scheduler.planner.outcome import Outcome
from aerie.scheduler.planner.samples import Planned
from aerie.scheduler.planner.survival import Survival
from aerie.scheduler.planner.trials import LUCK, LUCKY, PROBE_STEPS, Trials

HOLD, HELD = 4, 32
"""Steps for which a new choice holds while the same rows run; twice as long each time that it is chosen again, up to
HELD.
"""
NO_HEADS = 128
"""Steps for which it holds that no row may draft."""
MARGIN = 0.02
"""What a draft must promise beyond plain decoding while nothing is drafted."""
PROBE_REQUESTS = 16
"""Of so many requests for which drafting would not pay, one keeps head KV, so that it can be tried."""
ANSWER = 128
"""Tokens that a request decodes, at the most, over which a row that turns out better must pay for its prompt's head KV."""
SURPRISE = 2.0
"""Standard deviations of the committed tokens, about, at which a choice ends early."""
COMPARE_STEPS, COMPARED, SURE = 128, 2, 1.3
"""After so many drafting steps, this many plain ones show what those cost by now, unless drafting is so much ahead."""


_NOBODY: Longs = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class _Held:
    """The last choice, for as long as it holds."""

    planned: Planned
    headed: Longs
    nodes: Ints
    length: int
    """Steps for which it was to hold."""
    drafters: Longs = field(default_factory=lambda: _NOBODY)
    left: int = 0
    """Steps for which it still holds."""
    settled: int = 0
    above: float = 0.0
    """Tokens that its settled steps committed beyond those expected."""

    def surprises(self, tokens: int) -> bool:
        """Takes in a settled step; whether its steps are far from what was expected."""
        self.settled += 1
        self.above += tokens - self.planned.tokens
        drafted = self.planned.tokens - self.planned.rows
        return abs(self.above) > 1.0 + SURPRISE * math.sqrt(self.settled * (drafted + 0.5))


class Goodput:
    """Plans for `rows` rows. `shapes` are those of the config; the device has room for the largest of them."""

    def __init__(self, spec: SpecConfig, costs: StepCosts, shapes: list[DraftShape], *, rows: int) -> None:
        self.costs = costs
        self.outcome = Outcome()
        self.guard = Guard()
        trees = list(dict.fromkeys(shape for shape in shapes if shape.topk > 1 and shape.drafts))
        depths = chain_depths(shapes)
        deepest = max([depths[-1], *(shape.depth for shape in trees)])
        self.survival = Survival(rows, 1 + len(trees), deepest, most=8 * max(rows, 8))
        self.chains = Chains(costs, depths, Objective(spec.objective), rows=rows)
        self._trees = trees
        self._lessons = Lessons(costs, self.survival, self.guard, self.chains, trees)
        self._deepest = depths[-1]
        self._nodes: Ints = np.ones(rows, dtype=np.int32)
        self._allowed: Bools = np.zeros((rows, depths[-1]), dtype=np.bool_)
        self._masked = np.zeros((rows, depths[-1]))
        self._steps: Ints = np.arange(depths[-1], dtype=np.int32)
        self._planned: deque[Planned] = deque(maxlen=2)
        self._held: _Held | None = None
        self._trials = Trials()
        self._refused = self._drafted = 0

    @property
    def depths(self) -> tuple[int, ...]:
        return self.chains.depths

    def begin(self, row: int, temperature: float) -> None:
        """A row gets a new owner."""
        self.survival.begin(row, temperature)
        self._held = None

    def pays(self, rows: int, temperature: float, context: int, *, prompt: int = 0, answer: int = ANSWER) -> bool:
        """Whether a request of `prompt` tokens keeps head KV: if drafting pays for `rows` fresh rows of this temperature,
        or is expected to for this one alone over `answer` tokens, since it may be better than the mean.
        """
        if not self.costs.ready:
            return True
        plain = self._plain(rows, context)
        chances = self.survival.fresh(temperature, rows, self._deepest)
        best = self.chains.best(chances, rows, context, 0)
        if self.guard.allows(rows) and self._gain(best, rows, plain) > 1.0:
            return True
        chances = self.survival.fresh(temperature, 1, self._deepest, luck=LUCK)
        gain = self._gain(self.chains.best(chances, rows, context, 0), rows, plain) - 1.0 - MARGIN
        seconds = prompt * self.costs.pair
        if gain * plain * min(answer, ANSWER) * LUCKY > seconds and self._trials.afford(seconds / plain):
            return True
        self._refused += 1
        return self._refused % PROBE_REQUESTS == 0

    def rests(self, headed: Longs, rows: int) -> bool:
        """Whether a step of `rows` rows, of which the `headed` ones may draft, drafts nothing by a choice that still
        holds. Otherwise `decide` must be asked.
        """
        held = self._held
        if held is None or held.left <= 0 or held.planned.shape.drafts or held.planned.rows != rows:
            return False
        if not np.array_equal(held.headed, headed):
            return False
        self._note(held, NO_DRAFT)
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
        if (
            held is None
            or last
            or held.left <= 0
            or held.planned.rows != rows
            or not np.array_equal(held.headed, headed)
        ):
            self._lessons.learn()
            self.outcome.error = self.survival.error
            held = self._held = self._longer(held, self._choice(headed, most, rows, context, behind, last=last))
        nodes = self._nodes[: len(headed)]
        np.minimum(held.nodes, most + 1, out=nodes)
        np.maximum(nodes, 1, out=nodes)
        shape = held.planned.shape
        if shape.drafts:
            widest = int(nodes.max())
            if widest == 1:  # all are about to end
                shape = NO_DRAFT
            elif shape.topk == 1 and widest != shape.nodes:
                shape = DraftShape(widest - 1, 1, widest)
        self._note(held, shape)
        return shape, nodes

    def settle(self, plan: StepPlan, rows: Longs, live: Bools, output: StepOutput, *, steady: bool) -> None:
        """Takes in a settled step; `live` says which rows still have the owner that they were planned for."""
        planned = None
        if plan.decode is not None and self._planned:
            planned = self._planned.popleft()
            self.outcome.settle(planned, len(rows), output, drafted=plan.decode.depth > 0, steady=steady)
            held = self._held
            if planned.trial or (held is not None and held.planned is planned and self._surprised(held, output)):
                self._held = None  # its outcome counts at once
        self._lessons.take(plan, rows, live, output, planned, steady=steady)

    def _note(self, held: _Held, shape: DraftShape) -> None:
        """Counts a step of this shape."""
        held.left -= 1
        self._trials.note(drafts=shape.drafts)
        self._drafted = self._drafted + 1 if shape.drafts else 0
        self.survival.offsets.now += 1
        if shape.drafts:
            self.survival.offsets.draft(held.drafters)
        elif self._trials.since % PROBE_STEPS == 0:
            self.survival.forget()
        self._planned.append(held.planned)
        self.outcome.plan(shape)

    def _choice(
        self, headed: Longs, most: Ints, rows: int, context: int, behind: int, *, last: bool = False
    ) -> _Held:
        """The best shape for these rows by all that is known."""
        plain = self._plain(rows, context)
        resting = _Held(Planned(NO_DRAFT, rows, rows, plain, plain), headed, np.ones(len(headed), np.int32), HOLD)
        if not len(headed) or not self.costs.ready or int(most.max()) < 1:
            self.outcome.explain("no request may draft" if self.costs.ready else "costs are not known", 0.0)
            resting.length = NO_HEADS
            return resting
        best, shape = self._best(headed, most, rows, context, behind)
        gain = self._gain(best, rows, plain)
        if self._drafted >= COMPARE_STEPS and (gain < SURE or self._drafted >= 4 * COMPARE_STEPS):
            resting.length = COMPARED
            self.outcome.explain("measures plain steps", gain)
            return resting
        allowed, trial = self.guard.allows(rows), False
        if not allowed or gain <= 1.0 + (MARGIN if self._trials.since else 0.0):
            lucky = self._lucky(headed, rows, context, behind, plain)
            if lucky is not None:
                best, shape = lucky, DraftShape(lucky.depth, 1, lucky.depth + 1)
            elif not self._may_try(best, rows, plain, behind, last=last):
                self.outcome.explain("plain steps promise more" if allowed else "drafts were behind plain steps", gain)
                return resting
            else:
                self._best(headed, most, rows, context, behind)
            trial = True
        nodes = np.ones(len(headed), dtype=np.int32)
        if shape.topk == 1:
            self.chains.nodes(best, nodes)
            shape = DraftShape(int(nodes.max()) - 1, 1, int(nodes.max()))
        else:
            np.minimum(most + 1, shape.nodes, out=nodes)
        self.outcome.explain("tries whether drafts pay" if trial else "drafts promise more", gain)
        planned = Planned(shape, rows, best.tokens, self._corrected(best, rows), plain, trial)
        return _Held(planned, headed, nodes, 1 if trial else HOLD, headed[nodes > 1])

    def _best(
        self, headed: Longs, most: Ints, rows: int, context: int, behind: int
    ) -> tuple[Chosen, DraftShape]:
        allowed, masked = self._allowed[: len(headed)], self._masked[: len(headed)]  # [h, deepest] each
        np.less(self._steps, most[:, None], out=allowed)
        masked[:] = 0.0
        np.copyto(masked, self.survival.survivals(headed, 0, self._deepest), where=allowed)
        chosen = self.chains.best(masked, rows, context, behind)
        shape = DraftShape(chosen.depth, 1, chosen.depth + 1)
        for family, tree in enumerate(self._trees, start=1):
            expected = rows + float(self.survival.survivals(headed, family, tree.depth).sum())
            value = self.chains.of_tree(tree, expected, len(headed), rows, context, behind)
            if value is not None and value.tokens / value.seconds > chosen.tokens / chosen.seconds:
                chosen, shape = value, tree
        return chosen, shape

    def _lucky(self, headed: Longs, rows: int, context: int, behind: int, plain: float) -> Chosen | None:
        """The chains to try for rows of which little is known, if they would pay for lucky ones and can be afforded.
        Call it after `_best`. Its expected tokens are those of rows without luck.
        """
        allowed, masked = self._allowed[: len(headed)], self._masked[: len(headed)]
        means = masked.copy()  # [h, deepest]
        np.copyto(masked, self.survival.survivals(headed, 0, self._deepest, luck=LUCK), where=allowed)
        chosen = self.chains.best(masked, rows, context, behind)
        if self._gain(chosen, rows, plain) <= 1.0 + MARGIN:
            return None
        nodes = np.ones(len(headed), dtype=np.int32)
        self.chains.nodes(chosen, nodes)
        chosen.tokens = rows + float(means[self._steps < nodes[:, None] - 1].sum())
        return chosen if self._trials.afford(self._lost(chosen, rows, plain, behind)) else None

    def _may_try(self, chosen: Chosen, rows: int, plain: float, behind: int, *, last: bool) -> bool:
        """Whether a trial of the best draft is due: after a while, or if it is the `last` chance of some row."""
        if self._lessons.ahead:
            self._lessons.ahead = False
            return True
        due = last or self._trials.since >= PROBE_STEPS
        return due and self._trials.afford(self._lost(chosen, rows, plain, behind))

    def _lost(self, chosen: Chosen, rows: int, plain: float, behind: int) -> float:
        """Plain steps that a step of this shape is expected to lose."""
        return (self._corrected(chosen, rows) + self.chains.catching_up(behind)) / plain - chosen.tokens / rows

    def _surprised(self, held: _Held, output: StepOutput) -> bool:
        return held.planned.shape.drafts and held.surprises(int(output.counts.sum()))

    @staticmethod
    def _longer(last: _Held | None, held: _Held) -> _Held:
        """Holds a choice longer that was made before."""
        if last is not None and held.length == HOLD and last.planned.shape.drafts == held.planned.shape.drafts:
            held.length = min(2 * last.length, HELD)
        held.left = held.length
        return held

    def _plain(self, rows: int, context: int) -> float:
        return self.guard.corrected(self.costs.plain(rows, context), rows, drafts=False)

    def _corrected(self, chosen: Chosen, rows: int) -> float:
        return self.guard.corrected(chosen.seconds, rows, drafts=True)

    def _gain(self, chosen: Chosen, rows: int, plain: float) -> float:
        """Expected tokens a second over those of plain steps."""
        return chosen.tokens * plain / (rows * self._corrected(chosen, rows))

"""The planner: decides before each decode step which rows draft, how deep and how many nodes, or that none does.

Called by the policy with what is known then, which is one step late. It learns from every settled step. Nothing is
drafted unless it promises more tokens a second than plain decoding. While nothing is drafted, acceptance is not
observed, so a draft is tried now and then, as long as that costs less than a hundredth of the time since the last one.
"""

from dataclasses import dataclass

import numpy as np

from aerie.contracts.shape import NO_DRAFT, DraftShape
from aerie.contracts.spec_section import SpecConfig
from aerie.contracts.step import Bools, DecodeWork, Ints, Longs, StepOutput, StepPlan
from aerie.scheduler.planner.choice import ChainChoice, Chosen, Objective
from aerie.scheduler.planner.costs import StepCosts, StepTimes, StepWork
from aerie.scheduler.planner.outcome import Outcome
from aerie.scheduler.planner.survival import Survival

DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 63)
"""Depths of chains that are tried, up to the deepest shape of the config, which is tried too."""
MARGIN = 0.02
"""What a draft must promise beyond plain decoding while nothing is drafted."""
PROBE_STEPS = 64
PROBE_LOSS = 0.01
PROBE_REQUESTS = 16
"""Of so many requests for which drafting would not pay, one keeps head KV, so that it can be tried."""
_REACH_RATE = 0.05


@dataclass(frozen=True, slots=True)
class Trees:
    """A shape of trees that the config names. All rows draft it or none."""

    family: int
    shape: DraftShape


class Goodput:
    """Plans for `rows` rows. `shapes` are those of the config; the device has room for the largest of them."""

    def __init__(self, spec: SpecConfig, costs: StepCosts, shapes: list[DraftShape], *, rows: int) -> None:
        self.costs = costs
        self.outcome = Outcome()
        self._times = StepTimes(costs)
        self.depths = chain_depths(shapes)
        trees = dict.fromkeys(shape for shape in shapes if shape.topk > 1 and shape.drafts)
        self._trees = [Trees(family, shape) for family, shape in enumerate(trees, start=1)]
        deepest = max([self.depths[-1], *(shape.depth for shape in trees)])
        self.survival = Survival(rows, 1 + len(trees), deepest)
        self._choice = ChainChoice(rows, self.depths, Objective(spec.objective))
        self._reach = np.ones((8, self.depths[-1]))
        """Share of the steps that drafted each planned depth, by the logarithm of the drafting rows."""
        self._levels, self._shares = np.zeros(len(self.depths)), np.zeros(len(self.depths))
        self._draft = np.zeros(len(self.depths) * (rows + 1))
        self._ramp = np.arange(rows + 1, dtype=np.float64)
        self._nodes: Ints = np.ones(rows, dtype=np.int32)
        self._allowed: Bools = np.zeros((rows, self.depths[-1]), dtype=np.bool_)
        self._masked = np.zeros((rows, self.depths[-1]))
        self._steps: Ints = np.arange(self.depths[-1], dtype=np.int32)
        self._since = self._refused = 0

    def begin(self, row: int, temperature: float) -> None:
        """A row gets a new owner."""
        self.survival.begin(row, temperature)

    def pays(self, rows: int, temperature: float, context: int) -> bool:
        """Whether drafting would pay if `rows` fresh rows of this temperature ran."""
        if not self.costs.ready:
            return True
        chances = self.survival.fresh(temperature, rows, self.depths[-1])
        chosen = self._best_chains(chances, rows, context, 0)
        if chosen.tokens / chosen.seconds > rows / self.costs.plain(rows, context):
            return True
        self._refused += 1
        return self._refused % PROBE_REQUESTS == 0

    def decide(self, headed: Longs, most: Ints, rows: int, context: int, behind: int) -> tuple[DraftShape, Ints]:
        """The shape of a step of `rows` rows, and the nodes of each of the `headed` ones, which may draft.

        `most` [h]: the most nodes beyond the root that a row can use. `behind`: tokens with which heads must first be
        extended. The nodes are valid until the next call.
        """
        nodes = self._nodes[: len(headed)]
        nodes[:] = 1
        plain = self.costs.plain(rows, context)
        if not len(headed) or not self.costs.ready or int(most.max()) < 1:
            self._rest(rows, plain)
            return NO_DRAFT, nodes
        deep = self.depths[-1]
        allowed, masked = self._allowed[: len(headed)], self._masked[: len(headed)]  # [h, deep] each
        np.less(self._steps, most[:, None], out=allowed)
        masked[:] = 0.0
        np.copyto(masked, self.survival.survivals(headed, 0, deep), where=allowed)
        chosen = self._best_chains(masked, rows, context, behind)
        shape = DraftShape(chosen.depth, 1, chosen.depth + 1)
        for trees in self._trees:
            value = self._value_of(trees, headed, rows, context, behind)
            if value is not None and value.tokens / value.seconds > chosen.tokens / chosen.seconds:
                chosen, shape = value, trees.shape
        if not self._worthwhile(chosen, rows, plain, behind):
            self._rest(rows, plain)
            return NO_DRAFT, nodes
        self._since = 0
        if shape.topk == 1:
            self._choice.nodes(chosen, nodes)
            shape = DraftShape(int(nodes.max()) - 1, 1, int(nodes.max()))
        else:
            np.minimum(most + 1, shape.nodes, out=nodes)
        self.outcome.plan(shape, rows, chosen.tokens, chosen.seconds, plain)
        return shape, nodes

    def settle(self, plan: StepPlan, rows: Longs, live: Bools, output: StepOutput, *, steady: bool) -> None:
        """Learns from a settled step; `live` says which rows still have the owner that they were planned for."""
        work = plan.decode
        if work is None:
            self._times.take(output, None, waited=steady)
            return
        drafting = plan.drafting & (work.nodes > 1)
        levels = int(output.drafted.max(initial=0)) if work.depth and work.topk == 1 else work.depth
        own = StepWork(
            rows=len(rows),
            tokens=len(rows) + int(output.drafted.sum()),
            context=int(output.lengths.sum()),
            levels=levels,
            frontier=int(np.count_nonzero(drafting)) * work.topk,
            pairs=int(output.counts[plan.drafting].sum()),
        )
        self._times.take(output, own, waited=steady)
        committed = int(output.counts.sum())
        self.outcome.settle(committed, output.began, output.ended, drafted=work.depth > 0, steady=steady)
        if work.depth:
            known = drafting & live & (output.counts > 0) & (output.endings == 0)  # [R] bool, as drafting
            self._learn(work, rows[known], work.nodes[known], output.accepted[known], own)

    def _learn(self, work: DecodeWork, rows: Longs, nodes: Ints, accepted: Ints, own: StepWork) -> None:
        family = 0
        if work.topk > 1:
            family = next((trees.family for trees in self._trees if trees.shape.topk == work.topk), -1)
            if family < 0:
                return
        planned = np.minimum(nodes - 1, work.depth)
        if len(rows):
            self.survival.observe(rows, accepted, planned, family)
            self.outcome.error = self.survival.error
        if family == 0:
            reach = self._reach[_bucket(own.frontier), : min(work.depth, self.depths[-1])]
            reach *= 1 - _REACH_RATE
            reach[: own.levels] += _REACH_RATE

    def _best_chains(self, chances: np.ndarray, rows: int, context: int, behind: int) -> Chosen:
        """chances [n, deep] that the nodes of rows that may draft are accepted."""
        count, deep = len(chances), self.depths[-1]
        reach = np.add.accumulate(self._reach[_bucket(count)])  # [deep]
        for index, depth in enumerate(self.depths):
            self._levels[index] = reach[depth - 1]
            self._shares[index] = reach[depth - 1] / depth
        draft = self._draft[: len(self.depths) * (count + 1)].reshape(len(self.depths), count + 1)
        base, one = self.costs.draft_rates()
        np.multiply(self._levels[:, None], self._ramp[: count + 1], out=draft)
        draft *= one
        draft += base[0] + base[1] * self._levels[:, None] + self._catching_up(behind)
        table = self.costs.table(rows, context, min(rows + count * deep, self.costs.most_tokens) + 1)
        return self._choice.choose(chances, rows, table, draft, reach=self._shares, pair=self.costs.pair)

    def _value_of(self, trees: Trees, headed: Longs, rows: int, context: int, behind: int) -> Chosen | None:
        shape, count = trees.shape, len(headed)
        total = rows + count * (shape.nodes - 1)
        if total > self.costs.most_tokens:
            return None
        tokens = rows + float(self.survival.survivals(headed, trees.family, shape.depth).sum())
        seconds = float(self.costs.table(rows, context, total + 1)[total]) + self.costs.pair * tokens
        seconds += self.costs.draft(shape.depth, count * shape.topk) + self._catching_up(behind)
        return Chosen(shape.depth, count * (shape.nodes - 1), count, tokens, seconds)

    def _catching_up(self, behind: int) -> float:
        """Seconds a step for heads that are extended first, spread over the steps that may follow."""
        return (self.costs.extend_pass + behind * self.costs.pair) / PROBE_STEPS if behind else 0.0

    def _worthwhile(self, chosen: Chosen, rows: int, plain: float, behind: int) -> bool:
        margin = MARGIN if self._since else 0.0
        if chosen.tokens * plain > rows * chosen.seconds * (1 + margin):
            return True
        lost = chosen.seconds - chosen.tokens * plain / rows + PROBE_STEPS * self._catching_up(behind)
        return self._since >= PROBE_STEPS and lost <= PROBE_LOSS * self._since * plain

    def _rest(self, rows: int, plain: float) -> None:
        self._since += 1
        if self._since % PROBE_STEPS == 0:
            self.survival.forget()
        self.outcome.plan(NO_DRAFT, rows, rows, plain, plain)


def chain_depths(shapes: list[DraftShape]) -> tuple[int, ...]:
    """The depths of chains to try, within the largest of `shapes`."""
    most = max((min(shape.depth, shape.nodes - 1) for shape in shapes if shape.drafts), default=1)
    return (*(depth for depth in DEPTHS if depth < most), most)


def _bucket(rows: int) -> int:
    return min(rows.bit_length(), 7)

"""Planners of a simple machine, and what they decide, for the tests of the planner."""

import random

import numpy as np

from aerie.contracts.shape import NO_DRAFT, DraftShape
from aerie.contracts.spec_section import LoadShape, SpecConfig
from aerie.contracts.step import DecodeWork, StepKind, StepOutput, StepPlan
from aerie.scheduler.planner.costs import StepCosts
from aerie.scheduler.planner.goodput import Goodput
from aerie.scheduler.planner.keeping import Asked
from aerie.scheduler.planner.samples import SettledSteps
from aerie.scheduler.planner.work import StepWork

SPEC = SpecConfig(
    planner="goodput",
    by_load=(LoadShape(rows=3, depth=3, topk=2, nodes=8), LoadShape(rows=6, depth=4, topk=1, nodes=5)),
)
SHAPES = [DraftShape(3, 2, 8), DraftShape(4, 1, 5)]
CHAINS = [DraftShape(4, 1, 5)]


class Chaos(Goodput):
    """Drafts anything, rests at any time."""

    source = random.Random(5)

    def pays(self, asked, *, headed):
        return self.source.random() < 0.8

    def decide(self, headed, most, rows, context, behind, *, last=False):
        nodes = np.ones(len(headed), dtype=np.int32)
        shape = self.source.choice([NO_DRAFT, NO_DRAFT, *SHAPES, DraftShape(1, 1, 2)])
        if not shape.drafts or not len(headed) or most.max() < 1:
            return NO_DRAFT, nodes
        for row in range(len(headed)):
            nodes[row] = self.source.randint(1, min(int(most[row]) + 1, shape.nodes))
        if nodes.max() == 1:
            return NO_DRAFT, nodes
        return DraftShape(min(shape.depth, int(nodes.max()) - 1), shape.topk, int(nodes.max())), nodes


def costs(*, verify=1e-3, per_token=0.0, level=1e-4, node=0.0, pair=0.0, gap=1e-5, most=64):
    """Costs that have seen a simple machine, whose host takes `gap` seconds of each step."""
    known = StepCosts(most)
    for rows in (1, 2, 4, 8):
        for levels in (0, 1, 4):
            nodes, drafting = rows * (levels + 1), rows if levels else 0
            work = StepWork(rows, nodes, 0, levels, drafting, nodes if levels else 0)
            phases = {"verify": verify + per_token * work.tokens}
            if levels:
                phases |= {"draft": levels * (level + node * rows), "extend": level + pair * work.pairs}
            for _ in range(20):
                known.observe(work, phases, gap)
    return known


def pays(keeper, rows, temperature, context, *, prompt, answer, again=0, headed=0, **others):
    """Whether a request keeps head KV, asked of what keeps it or of a planner."""
    return keeper.pays(Asked(rows, temperature, context, prompt, answer, again=again), headed=headed, **others)


def planner(known=None, rows=8, kind=Goodput, shapes=SHAPES, **fields):
    return kind(SPEC, known or costs(**fields), shapes, rows=rows)


def decided(goodput, rows=1, steps=1, accepted=None, behind=0):
    """Shapes that are decided for greedy rows, which accept `accepted` of each draft."""
    every, most = np.arange(rows), np.full(rows, 63, dtype=np.int32)
    shapes = []
    for _ in range(steps):
        shape, nodes = goodput.decide(every, most, rows, 100 * rows, behind)
        goodput.prepare()
        shapes.append(shape)
        if shape.drafts and accepted is not None:
            planned = np.minimum(nodes - 1, shape.depth)
            labels = np.minimum(planned, accepted).astype(np.int32)
            goodput.survival.observe(every, labels, planned, int(shape.topk > 1))
    return shapes


def step(number, rows, depth=0, *, accepted=0, began=0.0, ended=0.0, decodes=True, **phases):
    """A step's plan and output; the first row drafts nothing, and the last one has ended."""
    ones = np.ones(rows, dtype=np.int32)
    nodes = ones + depth
    nodes[0] = 1
    work = DecodeWork(0 * ones, nodes, depth, 1) if decodes else None
    plan = StepPlan(number, StepKind.DECODE, np.arange(rows), 0 * ones, nodes > 1, None, work)
    ends = 0 * ones
    ends[-1] = rows > 2
    out = StepOutput(
        number,
        np.zeros((rows, depth + 1), dtype=np.int32),
        ones + accepted,
        0 * ones + accepted,
        nodes - 1,
        10 * ones,
        ends,
        phase_seconds=phases,
        began=began,
        ended=ended,
    )
    return plan, np.arange(rows) + 5, np.ones(rows, dtype=np.bool_), out


def settled(*each):
    """Settled steps, each (rows, depth, seconds, gap)."""
    steps, ended = SettledSteps(), 1.0
    for number, (rows, depth, seconds, gap) in enumerate(each):
        ended += gap + seconds
        steps.take(*step(number, rows, depth, accepted=min(depth, 1), ended=ended, verify=seconds), waited=True)
    steps.take(*step(len(each), 1), waited=True)
    return steps.whole

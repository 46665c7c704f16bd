"""Chains whose device stops drafting where its head is unsure: deep ones then cost less than their levels."""

import numpy as np
import pytest

from aerie.scheduler.planner.accepted import Labels, labels_of
from aerie.scheduler.planner.chains import Chains
from aerie.scheduler.planner.choice import Objective
from aerie.scheduler.planner.work import StepWork
from tests.scheduler.planner.planners import costs, settled


def chosen(chains, chance):
    return chains.best(np.cumprod(np.full((1, 6), chance), axis=1), 1, 100, 0)


def note(chains, *levels):
    """Steps of one drafting row, each (planned, drafted)."""
    planned, drafted = np.array(levels, dtype=np.int32).T
    chains._levels.note(planned, drafted, [1] * len(levels))
    chains._doubts.note(Labels(0 * planned, drafted, planned, drafted), len(levels))


def test_a_device_that_stops_early_makes_deep_chains_cheap():
    known = costs(verify=1e-3, per_token=1e-4, level=2e-4)
    eager, unsure = (Chains(known, (1, 2, 3, 4, 6), Objective.GOODPUT, rows=4) for _ in range(2))
    for _ in range(50):
        note(eager, (3, 3))
        note(unsure, (3, 1), (3, 1), (3, 2))
    assert chosen(unsure, 0.6).depth > chosen(eager, 0.6).depth, "levels that were never planned are like the others"
    assert chosen(unsure, 0.6).seconds < chosen(eager, 0.6).seconds * 1.5


@pytest.mark.parametrize(("rows", "drafting"), [(1, 1), (4, 4), (4, 2)])
def test_a_shape_costs_what_its_step_does(rows, drafting):
    """The head's extend included, by every node of the rows that draft."""
    known = costs(verify=1e-3, per_token=1e-4, level=1e-4, node=1e-5, pair=1e-4)
    chains = Chains(known, (4,), Objective.GOODPUT, rows=4)
    found = chains.best(np.full((drafting, 4), 1.0), rows, 100, 0)
    assert found.nodes == 4 * drafting
    work = StepWork(rows, rows + found.nodes, 100, 4, drafting, drafting + found.nodes)
    assert found.seconds == pytest.approx(known.step(work), rel=0.02)


@pytest.mark.parametrize("chance", [0.5, 0.95])
@pytest.mark.parametrize(("rows", "drafting"), [(1, 1), (4, 1), (4, 4)])
def test_like_rows_that_draft_to_one_depth_are_priced_as_others_are(rows, drafting, chance):
    chains = Chains(
        costs(verify=1e-3, per_token=1e-4, level=1e-4, node=1e-5, pair=1e-5), (1, 2, 4, 6), Objective.GOODPUT, rows=4
    )
    note(chains, *[(6, 4), (6, 6), (2, 1)] * 40)
    chances = np.cumprod(np.full(6, chance))
    found = chains.of_like(chances, drafting, rows, 100)
    other = chains.best(np.tile(chances, (drafting, 1)), rows, 100, 0)
    assert (found.depth, found.nodes) == (other.depth, other.nodes), "chances at which whole levels are the best"
    assert (found.tokens, found.seconds) == pytest.approx((other.tokens, other.seconds))


def test_rows_of_which_the_head_is_unsure_cost_little_where_others_draft_on():
    """A step drafts as long as the head is sure of any row, and verifies what it is sure of in each."""
    known = costs(verify=1e-3, per_token=1e-4, level=1e-5)
    whole, short = (Chains(known, (1, 2, 3, 4, 6), Objective.GOODPUT, rows=4) for _ in range(2))
    rows = [step.drafts for step in settled(*[(4, 6, 1.0, 0.1)] * 60)]
    for one in rows:
        one.output.endings[:] = 0
        one.output.drafted[:] = 0, 1, 2, 6
    labels = labels_of(rows)
    short.note_reach(rows, labels)
    assert short._levels.levels(4)[-1] == pytest.approx(6.0, rel=0.01)
    assert short._doubts.spared[1:].tolist() == pytest.approx([0.33, 0.67, 0.67, 0.67, 0.67], abs=0.03)
    found = [chains.of_like(np.full(6, 0.5), 4, 4, 100) for chains in (whole, short)]
    assert found[1].depth == 6 and found[1].seconds < known.step(StepWork(4, 4 + 4 * 6, 100, 6, 4, 28))

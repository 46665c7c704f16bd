"""Chains whose device stops drafting where its head is unsure: deep ones then cost less than their levels."""

import numpy as np
import pytest

from aerie.scheduler.planner.chains import Chains
from aerie.scheduler.planner.choice import Objective
from aerie.scheduler.planner.work import StepWork
from tests.scheduler.planner.planners import costs


def chosen(chains, chance):
    return chains.best(np.cumprod(np.full((1, 6), chance), axis=1), 1, 100, 0)


def note(chains, *levels):
    """Steps of one drafting row, each (planned, drafted)."""
    planned, drafted = np.array(levels, dtype=np.int32).T
    chains.note_reach(planned, drafted, [1] * len(levels))


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


def test_levels_are_counted_apart_and_fade():
    chains = Chains(costs(), (1, 2, 3, 4, 6), Objective.GOODPUT, rows=4)
    note(chains, *[(6, 6)] * 400)
    assert chains._reach[1] == pytest.approx(np.ones(6))
    note(chains, *[(6, 2)] * 400)
    assert chains._reach[1][1] == pytest.approx(1.0, abs=0.02) and chains._reach[1][2] < 0.1
    assert (np.diff(chains._reach[1]) <= 0).all() and (chains._reach[3] == 1.0).all()


def test_steps_count_together_as_they_do_one_after_the_other():
    levels = [(6, 2), (6, 6), (1, 1), (4, 0), (3, 3), (6, 5)]
    together, apart = (Chains(costs(), (1, 2, 3, 4, 6), Objective.GOODPUT, rows=4) for _ in range(2))
    note(together, *levels)
    for one in levels:
        note(apart, one)
    assert together._reach == pytest.approx(apart._reach) and together._reach[1].min() < 0.9

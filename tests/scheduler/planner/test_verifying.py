"""Passes that verify: they grow in bends, and what serving adds to one of them it adds to all."""

import numpy as np
import pytest

from aerie.scheduler.planner.verifying import VerifyCosts
from aerie.scheduler.planner.work import StepWork

ROWS, HELD = 4, 1200


def bent(nodes: int) -> float:
    """Rows of 300 tokens each: up to four nodes of a row wait for memory, and further ones for arithmetic."""
    return 1.5e-3 + 5e-5 * nodes + 1e-4 * max(nodes - 4 * ROWS, 0)


def learned(samples: int = 200) -> VerifyCosts:
    costs, random = VerifyCosts(64, 2e-3), np.random.default_rng(0)
    for nodes in random.choice((4, 8, 16, 20, 28), samples).tolist():
        costs.observe(StepWork(ROWS, nodes, HELD, frontier=ROWS if nodes > ROWS else 0), bent(nodes))
    return costs


def table(costs: VerifyCosts, *, each: float = 0.0) -> np.ndarray:
    out = np.zeros(29)
    costs.table(ROWS, HELD, each, out)
    return out


def test_nodes_beyond_four_of_a_row_cost_more():
    found = table(learned())
    for nodes in (8, 12, 16, 20, 24, 28):
        assert found[nodes] - found[4] == pytest.approx(bent(nodes) - bent(4), rel=0.15)


def test_the_table_is_what_passes_are_predicted_to_take():
    costs = learned()
    found = table(costs)
    for nodes in (8, 16, 28):
        several = costs.several(ROWS, HELD) * ROWS
        assert found[nodes] + several == pytest.approx(
            costs.predict(StepWork(ROWS, nodes, HELD, frontier=ROWS)), rel=0.02
        )


def test_each_node_but_the_roots_takes_so_much_more():
    costs = learned()
    plain, more = table(costs), table(costs, each=1e-4)
    assert more[28] - plain[28] == pytest.approx(24e-4) and more[4] == pytest.approx(plain[4])


@pytest.mark.parametrize("common", [0.0, 0.3])
def test_what_serving_adds_to_deep_drafts_it_adds_to_plain_steps(common: float):
    """Only drafting steps are seen, which take a third longer than the calibration's."""
    costs = learned()
    costs.anchor(0.15, common)
    before = costs.predict(StepWork(ROWS, ROWS, HELD))
    for _ in range(100):
        costs.observe(StepWork(ROWS, 28, HELD, frontier=ROWS), 4 / 3 * bent(28))
    assert costs.predict(StepWork(ROWS, 28, HELD, frontier=ROWS)) == pytest.approx(4 / 3 * bent(28), rel=0.05)
    longer = costs.predict(StepWork(ROWS, ROWS, HELD)) / before
    assert (1.27 < longer < 1.37) == (common > 0.0)

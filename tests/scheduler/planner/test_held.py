"""Choices that hold: to draft nothing suits any rows for a few steps, a draft only its own."""

import numpy as np
import pytest

from aerie.contracts.shape import NO_DRAFT, DraftShape
from aerie.scheduler.planner.held import HELD, HOLD, Held
from aerie.scheduler.planner.samples import Planned

ROWS = np.array([1, 4])
NONE = ROWS[:0]


def held(shape: DraftShape = NO_DRAFT, headed: np.ndarray = ROWS) -> Held:
    """Rows of which the last choice was like this one, so that it holds for long."""
    planned = Planned(shape, 3, 3.0, 1e-3, 1e-3)
    nodes = np.full(len(headed), shape.nodes, np.int32)
    return Held(planned, headed, nodes, HOLD).after(Held(planned, headed, nodes, HELD))


def taken(choice: Held, steps: int) -> Held:
    for _ in range(steps):
        choice.step()
    return choice


def test_to_draft_nothing_holds_for_a_few_steps_whoever_comes_or_leaves():
    for steps in range(HOLD):
        assert taken(held(), steps).rests(np.array([1, 2, 4]), 7)
    choice = taken(held(), HOLD)
    assert not choice.rests(np.array([1, 2, 4]), 3) and not choice.rests(ROWS, 4) and choice.rests(ROWS, 3)
    assert not taken(choice, HELD - HOLD).rests(ROWS, 3)


def test_where_no_row_may_draft_it_holds_for_any_number_of_rows():
    choice = taken(held(headed=NONE), HELD - 1)
    assert choice.rests(NONE, 9) and not choice.rests(ROWS[:1], 9)


@pytest.mark.parametrize("steps", [0, HOLD - 1, HOLD, HELD - 1])
def test_a_row_that_comes_waits_for_few_steps(steps):
    choice = taken(held(), steps)
    choice.hurry()
    assert choice.left == max(HOLD - steps, 0)
    choice.hurry()
    assert choice.left == max(HOLD - steps, 0)


def test_a_draft_never_rests():
    assert not held(DraftShape(3, 1, 4)).rests(ROWS, 3)

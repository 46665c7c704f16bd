"""Choices that hold: to draft nothing suits other rows too for some steps, a draft only its own."""

import numpy as np
import pytest

from aerie.contracts.shape import NO_DRAFT, DraftShape
from aerie.scheduler.planner.comparing import COMPARED
from aerie.scheduler.planner.held import HELD, HOLD, REST, Held, rest
from aerie.scheduler.planner.samples import Planned
from aerie.scheduler.planner.trials import PROBE_STEPS
from tests.scheduler.planner.planners import CHAINS, decided, planner

ROWS = np.array([1, 4])
NONE = ROWS[:0]


def held(shape: DraftShape = NO_DRAFT, headed: np.ndarray = ROWS) -> Held:
    """Rows of which the last choice was like this one, so that it holds for long."""
    planned = Planned(shape, 3, 3.0, 1e-3, 1e-3)
    nodes = np.full(len(headed), shape.nodes, np.int32)
    return Held(planned, headed, nodes, HOLD).after(Held(planned, headed, nodes, HOLD, age=HELD))


def taken(choice: Held, steps: int) -> Held:
    for _ in range(steps):
        choice.step()
    return choice


def test_to_draft_nothing_holds_for_some_steps_whoever_comes_or_leaves():
    others = np.array([1, 2, 4])
    assert all(taken(held(), steps).rests(others, 7) for steps in range(HOLD))
    assert not taken(held(), HOLD).rests(others, 7)
    assert all(taken(held(), steps).rests(others, rows) for steps in range(REST) for rows in (2, 3, 4))
    choice = taken(held(), REST)
    assert not choice.rests(others, 3) and not choice.rests(ROWS, 4) and choice.rests(ROWS, 3)
    assert not taken(choice, HELD - REST).rests(ROWS, 3)


def test_many_rows_rest_for_twice_as_long():
    planned = Planned(NO_DRAFT, 16, 16.0, 1e-3, 1e-3)
    many = [Held(planned, ROWS, np.ones(2, np.int32), rest(16)).after(None) for _ in range(2)]
    assert taken(many[0], 2 * REST - 1).rests(NONE, 15) and not taken(many[1], 2 * REST).rests(NONE, 15)


def test_rows_rest_for_as_long_as_no_trial_can_be_paid():
    planned = Planned(NO_DRAFT, 3, 3.0, 1e-3, 1e-3)
    choice = Held(planned, ROWS, np.ones(2, np.int32), 3 * REST, wait=3 * REST).after(None)
    assert taken(choice, 3 * REST - 1).rests(ROWS[:1], 4) and not choice.rests(ROWS[:1], 7)
    assert not taken(choice, 1).rests(ROWS[:1], 4)


@pytest.mark.parametrize(("length", "steps"), [(HOLD, HOLD), (HELD, HELD // 2)])
def test_a_row_that_comes_drafts_as_the_others_for_half_as_long_as_these(length: int, steps: int) -> None:
    planned = Planned(DraftShape(3, 1, 4), 3, 6.0, 1e-3, 1e-3)
    choice = Held(planned, ROWS, np.full(2, 4, np.int32), length).after(None)
    choice.hurry()
    assert choice.left == steps


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


def test_a_choice_made_again_for_a_row_that_came_holds_as_long_as_if_none_had():
    planned = Planned(NO_DRAFT, 1, 1.0, 1e-3, 1e-3)
    first, again = (Held(planned, ROWS, np.ones(2, np.int32), HOLD) for _ in range(2))
    taken(first.after(None).after(first), 1).hurry()
    assert first.left == HOLD - 1
    assert again.after(taken(first, HOLD - 1)).left == 4 * HOLD
    drafts = Held(Planned(DraftShape(3, 1, 4), 1, 2.0, 1e-3, 1e-3), ROWS, np.ones(2, np.int32), HOLD)
    assert drafts.after(again).left == HOLD, "another choice starts anew"


@pytest.mark.parametrize("full", [False, True])
def test_no_new_choice_for_rows_that_accept_all_that_can_be_drafted(full):
    planned = Planned(DraftShape(3, 1, 4), 3, 6.0, 1e-3, 1e-3)
    nodes = np.full(2, 4, np.int32)
    assert Held(planned, ROWS, nodes, HOLD, full).surprised(12) is not full
    assert Held(planned, ROWS, nodes, HOLD, full).surprised(0)


def test_only_chains_of_all_depths_draft_the_most():
    for level, shapes, full in ((1e-5, CHAINS, True), (1e-5, [*CHAINS, DraftShape(3, 2, 8)], False)):
        goodput = planner(level=level, shapes=shapes)
        assert decided(goodput, rows=2)[0].depth == max(shape.depth for shape in CHAINS)
        assert goodput._held.full is full


def test_a_draft_never_rests():
    assert not held(DraftShape(3, 1, 4)).rests(ROWS, 3)


def test_a_choice_holds_while_the_same_rows_run_and_suits_others_for_few_steps():
    goodput = planner(level=1e-5, shapes=CHAINS)
    chosen = []
    choice = goodput._choice
    goodput._choice = lambda batch: chosen.append(batch) or choice(batch)
    shapes = decided(goodput, rows=4, steps=4 + 8 + 16 + COMPARED + 4 + 8)
    assert len(chosen) == 6 and shapes.index(NO_DRAFT) == 28, "plain steps between two measure what those cost"
    goodput.begin(2, 0.0, headed=True)
    decided(goodput, rows=4)
    assert len(chosen) == 7, "the row came when the choice had held for long"
    assert decided(goodput, rows=3, steps=2 * HOLD - 1)[0].drafts and len(chosen) == 7, (
        "of four rows and more, one more waits longer"
    )
    decided(goodput, rows=3)
    assert len(chosen) == 8


def test_a_row_that_comes_drafts_like_the_others_until_the_next_choice():
    goodput = planner(level=1e-5, shapes=CHAINS)
    decided(goodput, rows=3)
    goodput.begin(7, 0.0, headed=True)
    shape, nodes = goodput.decide(np.array([0, 2, 7]), np.full(3, 63, dtype=np.int32), 3, 300, 0)
    assert shape.drafts and nodes.tolist() == [5, 5, 5]


def test_a_row_that_comes_late_drafts_by_the_choice_that_holds_then():
    """It waited for its prompt while a choice of deeper drafts was replaced."""
    goodput, most = planner(), np.full(3, 63, dtype=np.int32)
    shapes = iter([DraftShape(3, 2, 8), DraftShape(2, 1, 3)])

    def choice(batch):
        shape = next(shapes)
        planned = Planned(shape, batch.rows, 2.0 * batch.rows, 1e-3, 1e-3)
        return Held(planned, batch.headed, np.full(len(batch.headed), shape.nodes, np.int32), HOLD)

    goodput._choice = choice
    goodput.decide(np.arange(2), most[:2], 2, 200, 0)
    goodput.begin(7, 0.0, headed=True)
    for _ in range(HOLD):
        goodput.decide(np.arange(2), most[:2], 2, 200, 0)
    shape, nodes = goodput.decide(np.array([0, 1, 7]), most, 3, 300, 0)
    assert shape == DraftShape(2, 1, 3) and nodes.tolist() == [3, 3, 3]


def test_rows_that_rest_by_a_choice_that_holds_are_not_decided_again():
    goodput = planner(level=5e-3)
    assert not goodput.rests(np.arange(2), 2)
    assert decided(goodput, rows=2, steps=PROBE_STEPS + HOLD, accepted=0)[-1] == NO_DRAFT
    assert goodput.rests(np.arange(2), 2) and goodput.rests(np.arange(1), 2)
    assert not goodput.rests(np.arange(4), 4)


@pytest.mark.parametrize(("level", "steps"), [(1e-5, HOLD), (5e-3, REST)])
def test_lessons_are_learned_in_the_step_before_a_choice_and_not_again(level, steps):
    goodput, learned = planner(level=level, shapes=CHAINS), []
    learn = goodput._lessons.learn
    decided(goodput, rows=2)
    held = goodput._held
    goodput._lessons.learn = lambda: learned.append(held.age) or learn()
    while goodput._held is held:
        decided(goodput, rows=2)
    assert learned == [steps]


def test_what_ends_a_choice_early_is_learned_before_the_next_one():
    goodput, learned = planner(level=1e-5, shapes=CHAINS), []
    decided(goodput, rows=2, steps=HOLD - 1)
    goodput._lessons.learn = lambda: learned.append(True)
    goodput._held.end()
    decided(goodput, rows=2)
    assert learned == [True]

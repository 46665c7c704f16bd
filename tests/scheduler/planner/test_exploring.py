"""A while of drafts after a long rest: when it comes, what ends it, and that it comes seldomer if it is in vain."""

import pytest

from aerie.contracts.shape import NO_DRAFT, DraftShape
from aerie.scheduler.planner.exploring import FIRST_REST, LONGEST_REST, NEEDED, STEPS, Exploring
from aerie.scheduler.planner.guard import MOST_KEPT, SAVED, SAVED_KEPT, START, Guard
from aerie.scheduler.planner.held import HOLD
from aerie.scheduler.planner.trials import TRIED
from tests.scheduler.planner.planners import CHAINS, decided, planner

ROWS = 8


def rested(
    exploring: Exploring, *, promised: float = 0.95, cost: float = 0.0, most: int = 4 * LONGEST_REST
) -> int | None:
    """Steps at rest until requests keep head KV for it."""
    for steps in range(1, most):
        exploring.note(ROWS, drafts=False, trial=False, promised=promised, cost=cost)
        if exploring.on(ROWS):
            return steps
    return None


def ended(exploring: Exploring) -> int:
    """Steps in which rows draft until it is over."""
    steps = 0
    while exploring.on(ROWS) and exploring.drafts(ROWS // 2, ROWS):
        exploring.note(ROWS, drafts=True, trial=False, promised=0.95, cost=0.0)
        steps += 1
    return steps


def test_most_rows_draft_for_some_steps_after_a_long_rest_and_later_after_longer_ones() -> None:
    exploring, rests = Exploring(Guard()), []
    for _ in range(8):
        assert not exploring.on(ROWS) and not exploring.drafts(ROWS, ROWS)
        rests.append(rested(exploring))
        assert not exploring.drafts(ROWS // 2 - 1, ROWS), "too few rows have a head"
        assert ended(exploring) == STEPS
    assert rests == [min(FIRST_REST * 2**number, LONGEST_REST) for number in range(8)]


def test_it_ends_where_rows_get_no_heads() -> None:
    exploring = Exploring(Guard())
    rested(exploring)
    for _ in range(1000):
        exploring.note(ROWS, drafts=False, trial=False, promised=0.95, cost=0.0)
    assert not exploring.on(ROWS) and not exploring.drafts(ROWS, ROWS)


def test_drafts_of_their_own_begin_the_count_anew() -> None:
    exploring = Exploring(Guard())
    rested(exploring)
    ended(exploring)
    exploring.note(ROWS, drafts=True, trial=True, promised=0.95, cost=0.0)
    assert exploring._rest == 2 * FIRST_REST, "a trial is none"
    exploring.note(ROWS, drafts=True, trial=False, promised=0.95, cost=0.0)
    assert rested(exploring) == FIRST_REST


def test_it_does_not_come_where_drafts_promise_far_less_than_plain_steps() -> None:
    assert rested(Exploring(Guard()), promised=0.7) is None


def test_it_waits_until_head_kv_of_half_of_the_rows_is_paid() -> None:
    guard = Guard()
    exploring, cost = Exploring(guard), 3.0
    assert ROWS // 2 * cost > START and rested(exploring, cost=cost) is None
    guard.settle(ROWS, round((ROWS // 2 * cost - START) / SAVED_KEPT) + 1, 0, 0.0, 1e-3, drafts=False)
    assert rested(exploring, cost=cost) == 1


@pytest.mark.parametrize("account", ["drafts", "head KV"])
def test_it_does_not_go_on_with_an_empty_account(account: str) -> None:
    guard = Guard()
    exploring = Exploring(guard)
    if account == "drafts":
        guard.settle(ROWS, 5, ROWS, 1.0, 1e-3, drafts=True)
        assert guard.account(ROWS) < NEEDED and rested(exploring) is None
        guard.settle(ROWS, round(NEEDED / SAVED), 0, 0.0, 1e-3, drafts=False)
        assert rested(exploring) == 1
        return
    rested(exploring)
    guard.keep(ROWS, MOST_KEPT)
    assert not exploring.on(ROWS)


def test_rows_draft_one_level_then_even_where_a_tree_would_be_the_best_draft() -> None:
    goodput = planner(level=3e-3, shapes=[*CHAINS, DraftShape(1, 4, 5)])
    decided(goodput, rows=2, steps=HOLD)
    goodput._exploring._fills = goodput._exploring._steps = STEPS
    goodput._held.end()
    shapes = decided(goodput, rows=2, steps=STEPS)
    assert set(shapes) == {TRIED} and not goodput._exploring.on(2)
    assert not goodput._held.planned.trial and goodput.outcome.reason == "learns what drafts cost"
    goodput._held.end()
    assert decided(goodput, rows=2) == [NO_DRAFT], "it does not pay, as was expected"

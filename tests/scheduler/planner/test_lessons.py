"""When settled steps are learned from: the first at once, later ones several at a time, a trial once it is known."""

import pytest

from aerie.contracts.shape import NO_DRAFT
from aerie.scheduler.planner.lessons import ENOUGH, FIRST, MOST
from aerie.scheduler.planner.samples import Planned
from aerie.scheduler.planner.trials import TRIED
from tests.scheduler.planner.planners import CHAINS, planner, step

PLAIN = Planned(NO_DRAFT, 1, 1.0, 1e-3, 1e-3)
TRIAL = Planned(TRIED, 1, 1.5, 1e-3, 1e-3, trial=True)


def timed(count, depth=0, *, trial=None):
    """Steps after which times were learned, where a choice follows each; the first FIRST ones are not counted."""
    lessons, found = planner(shapes=CHAINS)._lessons, []
    observe = lessons._costs.observe
    for number in range(FIRST + count):
        lessons._costs.observe = lambda *work, number=number: found.append(number - FIRST) or observe(*work)
        tries = number - FIRST == trial
        took = step(number, 2, TRIED.depth if tries else depth, verify=1e-3)
        lessons.take(*took, TRIAL if tries else PLAIN, steady=True)
        lessons.learn()
    return list(dict.fromkeys(after for after in found if after > 0))


@pytest.mark.parametrize(("depth", "enough"), [(0, MOST), (3, ENOUGH)])
def test_times_are_learned_from_enough_steps_which_are_more_at_rest(depth: int, enough: int) -> None:
    assert timed(4 * enough, depth) == [enough * times for times in range(1, 4)]


def test_steps_that_show_nothing_teach_no_costs_and_are_booked() -> None:
    goodput = planner(shapes=CHAINS)
    lessons, guard = goodput._lessons, goodput.guard
    settled, compared = [], []
    settle, compare = guard.settle, guard.compare
    guard.settle = lambda *booked, **how: settled.append(booked[1]) or settle(*booked, **how)
    guard.compare = lambda *of, **how: compared.append(how["steps"]) or compare(*of, **how)
    taught = lessons._costs.observe
    lessons._costs.observe = lambda *work: compared.append("costs") or taught(*work)
    lessons.take(*step(0, 2, verify=1e-3), PLAIN, steady=True)
    lessons.take(*step(1, 2, decodes=False, prefill=1e-3), None, steady=True)
    lessons.take(*step(2, 2, verify=5e-3), PLAIN, steady=True)
    lessons.take_in()
    lessons.learn()
    assert compared == [1, "costs"]
    lessons.take(*step(3, 2, verify=1e-3), PLAIN, steady=True)
    lessons.learn()
    assert compared == [1, "costs"] and settled == [1, 1]


def test_what_a_trial_took_is_learned_as_soon_as_it_is_known() -> None:
    assert timed(12, trial=5) == [6], "its extend comes with the next step"

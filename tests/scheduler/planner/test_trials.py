"""Trials lose no more than a share of the time."""

from aerie.scheduler.planner.trials import SAVED, Trials


def test_trials_lose_at_most_a_share_of_the_steps():
    trials, lost, steps = Trials(), 0.0, 4000
    for number in range(steps):
        trials.note(drafts=False)
        one = 0.3 + 0.2 * (number % 7)
        lost += one if trials.afford(one) else 0.0
    assert 0.9 * SAVED * steps < lost <= 0.5 + SAVED * steps


def test_what_is_expected_to_gain_costs_no_budget():
    trials = Trials()
    before = trials.budget
    assert trials.afford(-0.5) and trials.budget == before
    assert not trials.afford(before + 0.1) and trials.budget == before


def test_a_long_rest_saves_no_endless_budget():
    trials = Trials()
    for _ in range(100_000):
        trials.note(drafts=False)
    assert trials.budget < 10 and trials.since == 100_000
    trials.note(drafts=True)
    assert trials.since == 0

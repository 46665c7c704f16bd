"""Trials lose no more than a share of the time, and let more requests be tried where more is accepted."""

import random

import pytest

from aerie.scheduler.planner.trials import CALM, LEAST_SAVED, PROBE_STEPS, SAVED, Trials


def saved(steps: int) -> float:
    """Of so many steps, the first after a step that drafted but was no trial."""
    return sum(max(SAVED * CALM / max(CALM, step), LEAST_SAVED) for step in range(1, steps + 1))


def test_trials_lose_at_most_a_share_of_the_steps():
    trials, lost, steps = Trials(), 0.0, 4000
    for number in range(steps):
        trials.note(drafts=False)
        one = 0.3 + 0.2 * (number % 7)
        lost += one if trials.afford(one) else 0.0
    assert 0.9 * saved(steps) < lost <= 0.5 + saved(steps) < 0.5 + 0.6 * SAVED * steps


def test_the_share_falls_with_a_long_rest_that_only_trials_end():
    trials, lost, before = Trials(), [], 0.0
    for _ in range(3):
        for number in range(4 * CALM):
            trials.note(drafts=number % 64 == 0, trial=True)
            before += 0.3 if trials.afford(0.3) else 0.0
        lost, before = [*lost, before], 0.0
    assert lost[0] > 1.5 * lost[1] and lost[2] == pytest.approx(LEAST_SAVED * 4 * CALM, rel=0.1)
    trials.note(drafts=True)
    again = sum(0.3 for _ in range(CALM) if trials.note(drafts=False) or trials.afford(0.3))
    assert again > 0.9 * saved(CALM) - 0.3


def test_a_trial_that_is_too_dear_is_not_thought_of_before_it_can_be_paid():
    trials = Trials()
    assert trials.afford(trials.budget) and trials.wait(0.0) == 0, "just after a trial"
    for _ in range(PROBE_STEPS):
        trials.note(drafts=False)
    wait = trials.wait(0.3)
    assert 0 < wait < trials.wait(10.0) < 1000
    for _ in range(wait - 1):
        trials.note(drafts=False)
    assert not trials.afford(0.3)
    trials.note(drafts=False)
    assert trials.wait(0.3) == 0 and trials.afford(0.3)


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


def test_a_trial_pays_what_it_lost_and_not_what_was_predicted():
    """Predicted to lose a tenth of a step, each loses seven: the budget ends them as if that had been predicted."""
    trials, lost, steps = Trials(), 0.0, 4000
    for _ in range(steps):
        trials.note(drafts=False)
        if trials.afford(0.1):
            lost += 0.7
            trials.settle(0.1, 0.7)
    assert 0.9 * saved(steps) < lost <= 1.2 + saved(steps)


def test_a_trial_that_gained_pays_for_others_and_no_loss_ends_them_for_good():
    trials = Trials()
    trials.settle(0.2, -0.7)
    assert trials.budget == 0.5 + 0.9
    trials.settle(0.0, 1000.0)
    assert -3.0 < trials.budget < 0.0 and not trials.afford(0.0)


def test_a_head_is_kept_only_if_its_row_can_be_tried_too():
    trials = Trials()
    assert trials.keep(2.0) and trials.keep(1.0), "the first prompts are kept whatever the budget"
    assert not trials.keep(0.1) and trials.budget == 0.5
    trials.settle(0.0, -100.0)
    assert not trials.keep(4.1) and trials.keep(4.0), "a long prompt may find less in the prefix cache"
    assert not trials.keep(3.6) and trials.keep(3.5)
    assert trials.afford(0.5)


def test_the_more_trials_accept_beyond_what_is_expected_the_more_requests_keep_head_kv():
    trials = Trials()
    seen = []
    for _ in range(4):
        assert trials.show(0.2 * trials.heads, trials.heads, trials.heads)
        seen.append(trials.heads)
    assert seen == [2, 5, 8, 8]
    assert not trials.show(1.6, 1.0, 8) and 4 <= trials.heads < 8
    for _ in range(20):
        assert not trials.show(0.2, 0.0, 1)
    assert trials.heads == 1
    trials.show(0.2, 1.0, 1)
    assert trials.heads == 2, "what was before a change counts for nothing"


@pytest.mark.parametrize("chance", [0.1, 0.3, 0.5, 0.8])
def test_what_is_accepted_as_often_as_expected_lets_few_more_requests_keep_head_kv(chance: float):
    source, trials, heads = random.Random(0), Trials(), []
    for _ in range(4000):
        tried = trials.heads
        trials.show(chance * tried, sum(source.random() < chance for _ in range(tried)), tried)
        heads.append(tried)
    assert sum(heads) / len(heads) < 2

"""Survival learned from labels: by class and depth, by row, and under labels that make no sense."""

import numpy as np
import pytest

from aerie.scheduler.planner.survival import Survival, temperature_class


def labels(source, chances, planned):
    """Accepted nodes of one row whose chances by depth are given."""
    accepted = 0
    while accepted < planned and source.random() < chances[accepted]:
        accepted += 1
    return accepted


def taught(survival, chances, *, steps=300, seed=0, planned=4):
    """Observes rows with `chances` [rows, depth]."""
    source = np.random.default_rng(seed)
    rows = np.arange(len(chances))
    for _ in range(steps):
        accepted = np.array([labels(source, own, planned) for own in chances], dtype=np.int32)
        survival.observe(rows, accepted, np.full(len(rows), planned, dtype=np.int32), 0)


def test_chances_are_learned_by_class_and_depth():
    survival = Survival(8, [1], 4)
    for row in range(8):
        survival.begin(row, 0.0 if row < 4 else 1.2)
    greedy, hot = np.array([0.9, 0.8, 0.7, 0.6]), np.array([0.4, 0.35, 0.3, 0.3])
    taught(survival, np.concatenate([np.tile(greedy, (4, 1)), np.tile(hot, (4, 1))]))
    fresh = Survival.survivals(survival, np.arange(8), 0, 4).copy()
    assert fresh[:4].mean(axis=0) == pytest.approx(np.cumprod(greedy), abs=0.12)
    assert fresh[4:].mean(axis=0) == pytest.approx(np.cumprod(hot), abs=0.12)
    assert (np.diff(fresh, axis=1) <= 0).all()


def test_a_row_that_accepts_more_is_expected_to():
    survival = Survival(4, [1], 4)
    for row in range(4):
        survival.begin(row, 0.0)
    chances = np.array([[0.9] * 4, [0.9] * 4, [0.3] * 4, [0.3] * 4])
    taught(survival, chances)
    first = survival.survivals(np.arange(4), 0, 4)[:, 0].copy()
    assert min(first[:2]) > 0.75 and max(first[2:]) < 0.5
    survival.begin(0, 0.0)
    fresh = survival.survivals(np.arange(4), 0, 4)[:, 0]
    assert max(first[2:]) < fresh[0] < min(first[:2])


def test_a_head_that_changes_is_noticed_within_a_hundred_steps():
    survival = Survival(1, [1], 4)
    survival.begin(0, 0.0)
    taught(survival, np.full((1, 4), 0.02), steps=400)
    assert survival.survivals(np.array([0]), 0, 4)[0, 0] < 0.15
    taught(survival, np.full((1, 4), 0.8), steps=100)
    assert survival.survivals(np.array([0]), 0, 4)[0, 0] > 0.6


def test_a_tree_without_labels_is_presumed_to_be_somewhat_better_than_the_chains_are():
    survival, rows = Survival(2, [1, 4, 8], 3), np.arange(2)
    accepted = np.array([1, 0], dtype=np.int32)
    for _ in range(80):
        survival.observe(rows, accepted, np.full(2, 3, dtype=np.int32), 0)
    for row in rows:
        survival.begin(int(row), 0.0)
    chain, tree, wider = (survival.survivals(rows, family, 3)[0, 0].copy() for family in range(3))
    assert 0.2 < chain < tree < wider < 0.8


def test_families_with_labels_learn_apart_until_these_are_old():
    survival, rows = Survival(2, [1, 4], 3), np.arange(2)
    none, own = np.zeros(2, dtype=np.int32), np.array([0.0, 0.0])
    survival.observe(rows, none + 3, none + 3, 1)
    for _ in range(2):
        survival.observe(rows, none, none + 3, 0)
    assert survival.survivals(rows, 1, 3, own)[0, 0] > 0.85
    for _ in range(300):
        survival.observe(rows, none, none + 3, 0)
    assert survival.survivals(rows, 0, 3, own)[0, 0] < 0.2
    assert survival.survivals(rows, 1, 3, own)[0, 0] < 0.3, "the head may have changed since"


def test_labels_that_make_no_sense_leave_chances_between_0_and_1():
    survival, source = Survival(4, [1], 3), np.random.default_rng(0)
    for _ in range(500):
        rows = source.permutation(4)[: source.integers(1, 5)]
        accepted = source.choice([-5, 0, 3, 2**30], len(rows)).astype(np.int32)
        planned = source.choice([-1, 0, 2, 3, 2**30], len(rows)).astype(np.int32)
        survival.observe(rows, accepted, planned, 0)
    rows = np.arange(4)
    chances = survival.conditional(rows, 0, 3, survival.offsets.current(rows)[0])
    assert (chances > 0).all() and (chances < 1).all() and np.isfinite(survival.error)


@pytest.mark.parametrize(("temperature", "kind"), [(0.0, 0), (1e-9, 0), (0.8, 1), (1.0, 2), (1.2, 2)])
def test_temperature_classes(temperature, kind):
    assert temperature_class(temperature) == kind


def test_luck_is_worth_more_for_rows_of_which_less_is_known():
    survival = Survival(4, [1], 4)
    taught(survival, np.array([[0.9] * 4, [0.9] * 4, [0.3] * 4, [0.3] * 4]), steps=100)
    survival.begin(0, 0.0)
    rows = np.arange(2)
    own, unknown = survival.offsets.current(rows)
    gained = survival.survivals(rows, 0, 1, own + unknown)[:, 0].copy() - survival.survivals(rows, 0, 1)[:, 0]
    assert gained[0] > 2 * gained[1] > 0
    fresh = survival.fresh(0.0, 1)[0]
    assert survival.fresh(0.0, 1, luck=1.0)[0] > fresh + 0.1


def test_what_one_temperature_shows_is_presumed_of_those_without_labels_at_every_depth():
    survival = Survival(2, [1], 4)
    rows = np.arange(2)
    for row in rows:
        survival.begin(int(row), 0.0)
    before = [survival.fresh(temperature, 4) for temperature in (0.0, 0.8, 1.2)]
    for _ in range(40):
        survival.observe(rows, np.array([2, 2], dtype=np.int32), np.array([2, 2], dtype=np.int32), 0)
    after = [survival.fresh(temperature, 4) for temperature in (0.0, 0.8, 1.2)]
    for old, new in zip(before, after, strict=True):
        assert (new > old).all() and new[3] / new[2] == pytest.approx(new[1] / new[0])
    survival.begin(0, 1.2)
    for _ in range(60):
        survival.observe(rows[:1], np.array([0], dtype=np.int32), np.array([2], dtype=np.int32), 0)
    assert survival.fresh(1.2, 4)[0] < before[2][0], "its own labels count once it has some"
    assert np.array_equal(survival.fresh(0.8, 4), after[1])

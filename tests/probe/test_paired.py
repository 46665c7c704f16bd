"""Ratios of modes that take turns: what both meet cancels, and intervals hold what resampling shows."""

import random

import pytest

from aerie.probe.paired import interval_of_sums, ratio, work


def test_a_machine_whose_speed_changes_by_the_round_changes_no_ratio():
    source = random.Random(1)
    slow = [source.uniform(1.0, 10.0) for _ in range(40)]
    found = ratio(work([10] * 40, [1.25 * one for one in slow]), work([10] * 40, slow))
    assert [found.value, found.lower, found.upper] == pytest.approx([0.8] * 3)


def test_the_interval_of_noise_holds_the_true_ratio_and_narrows_with_rounds():
    source = random.Random(2)
    widths, held = [], 0
    for rounds in (25, 400):
        for _ in range(40):
            first, second = ([source.gauss(1.0, 0.1) for _ in range(rounds)] for _ in range(2))
            found = ratio(work([10] * rounds, first), work([10] * rounds, second))
            held += found.lower <= 1.0 <= found.upper
            widths.append(found.half_width)
    assert 70 <= held <= 80
    assert sum(widths[40:]) < 0.4 * sum(widths[:40])


def test_a_turn_without_steps_counts_with_the_others_of_its_mode():
    found = ratio(work([20, 0, 20], [2.0, 0.0, 2.0]), work([10, 10, 10], [1.0, 1.0, 1.0]))
    assert found.value == pytest.approx(1.0)


def test_the_mean_of_groups_varies_less_than_each_of_them_does():
    source = random.Random(3)
    groups = [([source.randint(10, 40) for _ in range(50)], [10] * 50) for _ in range(4)]
    alone, together = interval_of_sums(groups[0]), interval_of_sums(*groups)
    mean = sum(sum(tokens) / sum(steps) for tokens, steps in groups) / 4
    assert together[0] < mean < together[1]
    assert 0.35 < (together[1] - together[0]) / (alone[1] - alone[0]) < 0.65  # half, of four alike

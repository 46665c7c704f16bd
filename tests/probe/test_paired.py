"""Ratios of modes that take turns: what both meet cancels, and intervals hold what resampling shows."""

import random

import pytest

from aerie.probe.paired import ratio, work


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

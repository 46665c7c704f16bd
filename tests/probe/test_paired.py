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


def streams(rounds, *, seed, often, rows=4, prompt=80, answer=240, tokens=500):
    """Tokens, seconds and prompt tokens of rounds over a stream of requests, of which a mode's end where its own luck
    says; a token takes `often` times 1 ms, one of a prompt 0.5 ms.
    """
    source = random.Random(seed)
    read = []
    for _ in range(rounds):
        read.append(sum(prompt * (source.random() < tokens / answer / 8) for _ in range(8)))
    mean = sum(read) / rounds
    read = [one * tokens / answer * prompt / mean for one in read]  # all modes read as many in the end
    return work([tokens] * rounds, [1e-3 * often * tokens + 5e-4 * one for one in read], read)


def test_what_a_rounds_prompts_add_is_no_difference_between_modes():
    own, base = streams(12, seed=1, often=0.8), streams(12, seed=2, often=1.0)
    found = ratio(own, base)
    true = (1e-3 + 5e-4 * 80 / 240) / (0.8e-3 + 5e-4 * 80 / 240)
    assert [found.value, found.lower, found.upper] == pytest.approx([true] * 3)
    unknown = ratio(*(work(one.tokens, one.seconds) for one in (own, base)))
    assert unknown.half_width > 0.03


def test_prompts_that_only_one_mode_reads_in_the_measured_rounds_are_no_slowness_of_it():
    source = random.Random(4)
    prompts = [source.choice([0, 80, 160, 240]) for _ in range(40)]
    own = work([500] * 40, [0.5 + 5e-4 * one for one in prompts], prompts)
    later = [*prompts[:-1], 4000]
    other = work([500] * 40, [0.5 + 5e-4 * one for one in later], later)
    assert ratio(other, own).value == pytest.approx(1.0)
    assert ratio(work(other.tokens, other.seconds), work(own.tokens, own.seconds)).value < 0.95


def test_intervals_at_equal_prompts_hold_the_true_ratio_of_noisy_rounds():
    source, held = random.Random(5), 0
    for seed in range(80):
        own, base = streams(16, seed=2 * seed, often=0.9), streams(16, seed=2 * seed + 1, often=0.9)
        for one in (own, base):
            one.seconds[:] *= [source.gauss(1.0, 0.03) for _ in range(16)]
        found = ratio(own, base)
        held += found.lower <= 1.0 <= found.upper
    assert 70 <= held <= 80

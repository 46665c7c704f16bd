"""How rows differ: shrunk to what all rows show, forgotten while they rest as far as rests taught."""

import numpy as np
import pytest

from aerie.scheduler.planner.offsets import Offsets


def logistic(logit):
    return 1.0 / (1.0 + np.exp(-logit))


def teach(offsets, source, rows, logits, steps):
    """Labels of classes whose mean is even chances, predicted by the offsets themselves."""
    every = np.array(rows)
    for _ in range(steps):
        offsets.now += 1
        offsets.draft(every)
        own, known = offsets.current(every)[0], np.full(len(rows), True)
        chances = logistic(own)
        residuals = (source.random(len(rows)) < logistic(np.array(logits))) - chances
        offsets.observe(every, residuals, chances * (1 - chances), own, known, 1)


@pytest.mark.parametrize(("spread", "least", "most"), [(0.0, 0.1, 0.3), (1.5, 0.7, 4.0)])
def test_the_variance_of_rows_is_learned(spread, least, most):
    source = np.random.default_rng(0)
    offsets = Offsets(8)
    for _ in range(12):  # owners of eight rows
        for row in range(8):
            offsets.begin(row)
        teach(offsets, source, range(8), source.normal(0, spread, 8), 40)
    assert least <= offsets.variance <= most


def test_rows_that_differ_little_are_believed_to_be_alike():
    alike, apart = Offsets(1), Offsets(1)
    alike.variance, apart.variance = 0.02, 2.0
    one = np.array([0])
    for offsets in (alike, apart):
        offsets._learn_variance = lambda *labels: None
        for _ in range(10):
            own = offsets.current(one)[0]
            offsets.observe(one, np.array([0.5]), np.array([0.25]), own, np.array([True]), 1)
    assert 0 < 10 * alike.current(one)[0][0] < apart.current(one)[0][0]
    assert alike.current(one)[1][0] < 0.2 < apart.current(one)[1][0]


def test_what_a_row_showed_counts_less_the_longer_it_rests():
    offsets, one = Offsets(1), np.array([0])
    teach(offsets, np.random.default_rng(1), [0], [2.0], 60)
    seen = []
    for rest in (0, 10, 20, 40, 80):
        offsets.now += rest - (seen[-1][0] if seen else 0)
        seen.append((rest, *(float(part[0]) for part in offsets.current(one))))
    values, unknown = [own for _, own, _ in seen], [own for _, _, own in seen]
    assert values == sorted(values, reverse=True) and unknown == sorted(unknown)
    assert values[0] > 1.0 and values[-1] < 0.6 * values[0]


def test_rows_that_come_back_as_they_were_are_remembered_better():
    assert remembered(stays=True) > 0.75 > 0.5 > remembered(stays=False)


def remembered(*, stays):
    """The share of an offset that is left after a rest, once many rows came back as they were, or as any other row."""
    source = np.random.default_rng(2)
    offsets, every = Offsets(4), np.arange(4)
    logits = np.array([2.0, 2.0, -2.0, -2.0])
    for _ in range(60):
        for row in range(4):
            offsets.begin(row)
        teach(offsets, source, every, logits, 15)
        before = np.abs(offsets.current(every)[0]).mean()
        offsets.now += 20
        after = np.abs(offsets.current(every)[0]).mean()
        teach(offsets, source, every, logits if stays else source.permutation(logits), 15)
    return after / before


def test_a_new_owner_has_shown_nothing():
    offsets, one = Offsets(2), np.array([1])
    teach(offsets, np.random.default_rng(3), [1], [3.0], 30)
    offsets.begin(1)
    assert offsets.current(one)[0][0] == 0.0
    assert offsets.shares(one)[0] == 1.0

"""How far chains come, by level and by the number of rows: counts that fade, whatever steps come together."""

import numpy as np
import pytest

from aerie.scheduler.planner.accepted import Labels
from aerie.scheduler.planner.reach import Doubts, Reach


def note(reach, *levels, rows=1):
    """Steps of so many drafting rows, each (planned, drafted)."""
    planned, drafted = np.array(levels, dtype=np.int32).T
    reach.note(planned, drafted, [rows] * len(levels))


def test_levels_are_counted_apart_and_fade():
    reach = Reach(6)
    note(reach, *[(6, 6)] * 400)
    assert reach.levels(1) == pytest.approx(np.arange(1, 7))
    note(reach, *[(6, 2)] * 400)
    assert reach.levels(1)[1] == pytest.approx(2.0, abs=0.05) and reach.levels(1)[5] < 2.1
    assert (reach.levels(7) == np.arange(1, 7)).all(), "of other batches nothing is known"


def test_a_head_that_is_unsure_from_the_first_level_on_has_hardly_any():
    reach = Reach(6)
    note(reach, *[(6, 0)] * 400)
    assert reach.levels(1)[5] < 0.1


def test_what_fails_and_is_not_verified_is_spared():
    doubts, every = Doubts(4, unsure=True), np.full(400, 4)
    assert doubts.spared.min() == doubts.spared.max() > 0.5, "before any step, heads are thought to know what fails"
    doubts.note(Labels(0 * every, 0 * every + 1, every, 0 * every + 2), 4)
    assert doubts.spared[1:].tolist() == pytest.approx([0.0, 1.0, 1.0], abs=0.01)
    assert 0.5 < doubts.spared[0] < 0.7, "nothing fails at the first level: it is like the mean of all"
    doubts.note(Labels(0 * every, 0 * every + 1, every, every), 400)
    assert doubts.spared[1:].max() < 0.01


def test_nothing_is_spared_where_heads_cannot_end_chains():
    assert not Doubts(4, unsure=False).spared.any()


def test_steps_count_together_as_they_do_one_after_the_other():
    levels = [(6, 2), (6, 6), (1, 1), (4, 0), (3, 3), (6, 5)]
    rows = [1, 3, 1, 1, 2, 1]
    together, apart = Reach(6), Reach(6)
    planned, drafted = np.array(levels, dtype=np.int32).T
    together.note(planned, drafted, rows)
    for one, count in zip(levels, rows, strict=True):
        note(apart, one, rows=count)
    assert together._levels == pytest.approx(apart._levels) and together._levels[1][5] < 5.5

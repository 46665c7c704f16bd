"""How far chains come, by level and by the number of rows: counts that fade, whatever steps come together."""

import numpy as np
import pytest

from aerie.scheduler.planner.reach import Reach


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


def test_chains_of_one_step_count_together():
    apart, together = Reach(4), Reach(4)
    planned, drafted = np.array([4, 4, 2], dtype=np.int32), np.array([4, 1, 2], dtype=np.int32)
    together.note(planned, drafted, [3], np.zeros(3, dtype=np.int64))
    apart.note(planned, drafted, [3, 3, 3])
    assert together.levels(3) == pytest.approx(apart.levels(3), rel=0.02)
    assert (together._could[2] == [3, 3, 1, 1]).all() and (together._went_on[2] == [3, 2, 1, 1]).all()


def test_steps_count_together_as_they_do_one_after_the_other():
    levels = [(6, 2), (6, 6), (1, 1), (4, 0), (3, 3), (6, 5)]
    rows = [1, 3, 1, 1, 2, 1]
    together, apart = Reach(6), Reach(6)
    planned, drafted = np.array(levels, dtype=np.int32).T
    together.note(planned, drafted, rows)
    for one, count in zip(levels, rows, strict=True):
        note(apart, one, rows=count)
    assert together._levels == pytest.approx(apart._levels) and together._levels[1][5] < 5.5

"""Sizes of batches: each of its own up to 7 rows, then four to an octave."""

from aerie.scheduler.planner.sizes import size_of


def test_sizes_of_batches():
    assert [size_of(rows) for rows in range(1, 20)] == [*range(1, 8), 8, 8, 10, 10, 12, 12, 14, 14, 16, 16, 16, 16]
    assert len({size_of(rows) for rows in range(32, 64)}) == 4
    assert all(size_of(rows) <= rows < 1.25 * size_of(rows) for rows in range(8, 1000))

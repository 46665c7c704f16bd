"""One bit and an epoch a row."""

import numpy as np

from aerie.scheduler.future_map import FutureMap


def test_only_published_rows_change_generation():
    future = FutureMap(4)
    rows = np.array([0, 2])
    before = future.resolve(np.arange(4))
    future.publish(rows)
    assert (future.resolve(np.arange(4)) ^ before).tolist() == [1, 0, 1, 0]
    future.publish(rows)
    assert (future.resolve(np.arange(4)) == before).all()


def test_resolved_generations_are_a_copy():
    future = FutureMap(2)
    generations = future.resolve(np.arange(2))
    future.publish(np.arange(2))
    assert generations.tolist() == [0, 0]


def test_a_stamp_outlives_its_owner_only_as_void():
    future = FutureMap(3)
    rows = np.array([0, 1, 2])
    stamps = future.stamp(rows)
    future.leave(1)
    assert future.current(rows, stamps).tolist() == [True, False, True]
    assert future.current(rows, future.stamp(rows)).all()

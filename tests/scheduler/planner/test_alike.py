"""Groups of like steps: their mean work, and means of times that pauses do not move."""

import pytest

from aerie.scheduler.planner.alike import alike
from tests.scheduler.planner.planners import settled


def test_pauses_do_not_move_a_mean():
    [group] = alike(
        settled((2, 1, 1e-3, 0.1), (2, 1, 1e-3, 0.1), (2, 1, 1e-3, 0.2), (2, 1, 9.0, 0.1), (2, 1, 1e-3, 7.0))
    )
    phases, gap = group.times()
    assert phases["verify"] == pytest.approx((4 * 1e-3 + 3e-3) / 5), "cut at three medians"
    assert gap == pytest.approx((0.1 + 0.2 + 0.1 + 0.45) / 4), "nothing is known of the first"


def test_only_like_steps_share_a_group():
    groups = alike(settled((2, 1, 1.0, 0.1), (3, 1, 2.0, 0.1), (2, 0, 3.0, 0.1), (2, 2, 4.0, 0.1)))
    assert [[one.phases["verify"] for one in group.steps] for group in groups] == [[1.0, 4.0], [2.0], [3.0]]


def test_the_work_of_a_group():
    [group] = alike(settled((4, 2, 1.0, 0.1), (4, 3, 1.0, 0.1)))
    work = group.work()
    assert (work.rows, work.tokens, work.context, work.levels) == (4, 4 + 7.5, 40, 2.5)
    assert (work.frontier, work.pairs, group.tokens) == (3, 3 + 7.5, 16)


def test_steps_of_about_equally_many_rows_share_a_group():
    groups = alike(settled((8, 2, 1.0, 0.1), (9, 2, 3.0, 0.1), (10, 2, 5.0, 0.1)))
    assert [group.count for group in groups] == [2, 1]
    work = groups[0].work()
    assert (work.rows, work.tokens, work.levels, groups[0].times()[0]["verify"]) == (8, 8.5 + 15, 2, 2.0)


def test_steps_that_show_nothing_count_but_for_their_times():
    steps = settled((4, 0, 1.0, 0.1), (4, 0, 5.0, 0.1), (4, 0, 1.0, 0.1))
    steps[1].usual = False
    [group] = alike(steps)
    assert (group.count, group.shown, group.tokens) == (3, 2, 12)
    assert group.times()[0]["verify"] == pytest.approx(1.0)
    [alone] = alike(steps[1:2])
    assert alone.shown == 0 and alone.times()[0]["verify"] == 5.0, "the account is to know what it took"


def test_few_plain_steps_are_hardly_moved_by_one_that_paused():
    [plain] = alike(settled((2, 0, 1.0, 0.1), (2, 0, 1.0, 0.1), (2, 0, 1.0, 0.1), (2, 0, 9.0, 0.1)))
    [drafting] = alike(settled((2, 1, 1.0, 0.1), (2, 1, 1.0, 0.1), (2, 1, 1.0, 0.1), (2, 1, 9.0, 0.1)))
    assert plain.times()[0]["verify"] == pytest.approx(4.5 / 4)
    assert drafting.times()[0]["verify"] == pytest.approx(6.0 / 4)

"""A run reads more of the tasks that its last judgement found wanting."""

from pathlib import Path

from aerie.train.demo.lessons import Lessons


def test_a_run_reads_more_of_what_it_does_worst(tmp_path: Path) -> None:
    rates = iter([{"counting": 0.75, "tools": 0.0}, {"counting": 1.0, "tools": 0.5}])
    lessons = Lessons({"counting": 2.0, "tools": 1.0}, tmp_path / "rates", every=10, judge=lambda: next(rates))
    for step in range(1, 21):
        lessons.watch(step)
    resumed = Lessons({"counting": 2.0, "tools": 1.0}, tmp_path / "rates", every=10, judge=dict)
    for known in (lessons, resumed):
        assert known.shares(9) == {"counting": 2.0, "tools": 1.0}
        assert known.shares(10) == known.shares(19) == {"counting": 0.5, "tools": 1.0}
        assert known.shares(25) == {"counting": 0.2, "tools": 0.5}
    part = Lessons({"counting": 2.0, "tools": 1.0}, tmp_path / "rates", every=10, judge=dict, first=15)
    assert part.shares(19) == {"counting": 2.0, "tools": 1.0} and part.shares(20) == {"counting": 0.2, "tools": 0.5}

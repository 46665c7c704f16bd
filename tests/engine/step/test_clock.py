"""The host's clock: what runs after a step's times were read is told with the next step's, and nothing is lost."""

import time
from types import SimpleNamespace

import pytest

from aerie.engine.step.clock import StepClock


def test_what_runs_after_the_answer_is_told_with_the_next_step() -> None:
    clock, reported = StepClock(threads=1), []
    for _ in range(3):
        read = clock.start()
        with clock.phase("verify"):
            time.sleep(0.002)
        reported.append(read())
        with clock.phase("extend"):
            time.sleep(0.001)
        clock.stop()
    assert [list(times.phases) for times in reported] == [["verify"], ["extend", "verify"], ["extend", "verify"]]
    assert reported[0].ended <= reported[1].began < reported[1].ended <= reported[2].began
    assert all(times.ended - times.began >= sum(times.phases.values()) for times in reported)


def test_busy_is_the_work_of_all_steps_and_not_what_lies_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that the test turns."""
    now = 100.0
    monkeypatch.setattr("aerie.engine.step.clock.time", SimpleNamespace(**vars(time) | {"process_time": lambda: now}))
    clock, busy = StepClock(threads=2), []
    for _ in range(3):
        now += 16
        read = clock.start()
        now += 2
        busy.append(read().busy)
        now += 1
        clock.stop()
    now += 16
    busy.append(clock.start()().busy)
    assert busy == [1, 1.5, 1.5, 0.5]

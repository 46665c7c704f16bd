"""The host's clock: what runs after a step's times were read is told with the next step's, and nothing is lost."""

import time

import pytest

from engine.clock import StepClock


def test_what_runs_after_the_answer_is_told_with_the_next_step() -> None:
    clock, told = StepClock(threads=1), []
    for _ in range(3):
        read = clock.start()
        with clock.phase("verify"):
            time.sleep(0.002)
        told.append(read())
        with clock.phase("extend"):
            time.sleep(0.001)
        clock.stop()
    assert [list(times.phases) for times in told] == [["verify"], ["extend", "verify"], ["extend", "verify"]]
    assert told[0].ended <= told[1].began < told[1].ended <= told[2].began
    assert all(times.ended - times.began >= sum(times.phases.values()) for times in told)


def test_busy_is_the_work_of_all_steps_and_not_what_lies_between_them() -> None:
    clock, busy, between = StepClock(threads=2), 0.0, 0.0
    began = time.process_time()
    for _ in range(3):
        read = clock.start()
        _work(0.01)
        busy += read().busy
        _work(0.005)
        clock.stop()
        since = time.process_time()
        _work(0.02)
        between += time.process_time() - since
    busy += clock.start()().busy
    assert 2 * busy == pytest.approx(time.process_time() - began - between, rel=0.1)


def _work(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass

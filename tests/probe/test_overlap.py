"""The probe's figures follow from its lane, and the lane keeps its own time."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from aerie.contracts.step import Capacity, DecodeWork, StepKind, StepPlan
from aerie.probe.overlap import Roofline, RooflineLane, measure_overlap, table
from aerie.scheduler import Scheduler
from aerie.scheduler.loop import Reply


def test_the_roofline_is_that_of_the_survey():
    roofline = Roofline()

    def rate(batch: int, context: int) -> float:
        return batch / roofline.step_seconds(np.full(batch, context), batch, 0, 0)

    assert [
        round(rate(*case)) for case in ((1, 1000), (32, 1000), (64, 1000), (128, 1000), (32, 8000))
    ] == pytest.approx([221, 5556, 9089, 13325, 2172], rel=0.03)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> "Clock":
    """In place of the machine's, which goes on while others have the processor."""
    clock = Clock()
    monkeypatch.setattr("aerie.probe.overlap.time", SimpleNamespace(perf_counter=clock, thread_time=time.thread_time))
    return clock


class Clock:
    """A microsecond passes between two looks at it; and what is added to `now`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


def test_the_lane_takes_its_time_and_counts_what_it_stood_idle(clock: Clock):
    capacity = Capacity(rows=1, pages=9, page_size=4, max_length=32, vocabulary=50, end_ids=(), drafts=False, reserve=1)
    one = np.ones(1, dtype=np.int32)
    work = DecodeWork(bounds=one, nodes=one, depth=0, topk=1)
    lane = RooflineLane(capacity, Roofline(), acceptance=0.5)
    lane.start()
    started = clock()
    for number in range(4):
        plan = StepPlan(number, StepKind.DECODE, 0 * one, 0 * one, one > 1, None, work)
        lane.launch(plan)
        assert lane.settle().number == number
        if number < 3:
            clock.now += 0.002
    took = clock() - started
    assert lane.busy_seconds > 4 * 0.004 and lane.idle_seconds == pytest.approx(3 * 0.002, abs=2e-5)
    assert took == pytest.approx(lane.busy_seconds + lane.idle_seconds, abs=2e-5), "no second is lost or counted twice"


def test_cells_of_both_loops() -> None:
    cells = measure_overlap((2, 8), steps=12, prompt=40)
    assert [(cell["batch"], cell["overlap"]) for cell in cells] == [(2, True), (2, False), (8, True), (8, False)]
    for cell in cells:
        assert 0 <= cell["idle_share"] < 1 and cell["host_ms_per_step"] > 0
        assert 1 <= cell["acceptance_length"] <= 4
        assert cell["acceptance"] == "simulated"
    assert len(table(cells).splitlines()) == 5


def test_the_overlapped_loop_hides_the_host_and_its_twin_does_not(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A millisecond of the host's work in each turn; only before the first step must the lane wait for it."""
    iterate = Scheduler.iterate

    def iterate_in_a_millisecond(scheduler: Scheduler) -> list[Reply]:
        clock.now += 0.001
        return iterate(scheduler)

    monkeypatch.setattr(Scheduler, "iterate", iterate_in_a_millisecond)
    overlapped, synchronous = measure_overlap((2,), steps=12, prompt=40)
    step = synchronous["device_ms"]
    assert synchronous["idle_share"] == pytest.approx(1 / (1 + step), rel=0.01)
    assert overlapped["idle_share"] == pytest.approx(1 / (1 + 12 * step), rel=0.01)

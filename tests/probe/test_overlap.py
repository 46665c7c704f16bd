"""The probe's figures follow from its lane, and the lane keeps its own time."""

import time

import numpy as np
import pytest

from contracts.step import Capacity, DecodeWork, StepKind, StepPlan
from probe.overlap import Roofline, RooflineLane, measure_overlap, table


def test_the_roofline_is_that_of_the_survey():
    roofline = Roofline()

    def rate(batch: int, context: int) -> float:
        return batch / roofline.step_seconds(np.full(batch, context), batch, 0, 0)

    assert [
        round(rate(*case)) for case in ((1, 1000), (32, 1000), (64, 1000), (128, 1000), (32, 8000))
    ] == pytest.approx([221, 5556, 9089, 13325, 2172], rel=0.03)


def test_the_lane_takes_its_time_and_counts_what_it_stood_idle():
    capacity = Capacity(rows=1, pages=9, page_size=4, max_length=32, vocabulary=50, end_ids=(), drafts=False, reserve=1)
    lane = RooflineLane(capacity, Roofline(), acceptance=0.5)
    one = np.ones(1, dtype=np.int32)
    work = DecodeWork(bounds=one, nodes=one, depth=0, topk=1)
    lane.start()
    started = time.perf_counter()
    for number in range(4):
        plan = StepPlan(number, StepKind.DECODE, 0 * one, 0 * one, one > 1, None, work)
        lane.launch(plan)
        assert lane.settle().number == number
        time.sleep(0.002)
    took = time.perf_counter() - started
    assert lane.idle_seconds >= 3 * 0.002
    assert lane.busy_seconds + lane.idle_seconds <= took <= lane.busy_seconds + lane.idle_seconds + 0.02


def test_cells_of_both_loops():
    cells = measure_overlap((2, 8), steps=12, prompt=40)
    assert [(cell["batch"], cell["overlap"]) for cell in cells] == [(2, True), (2, False), (8, True), (8, False)]
    for overlapped, synchronous in zip(cells[::2], cells[1::2], strict=True):
        assert 0 <= overlapped["idle_share"] < synchronous["idle_share"] < 1
        assert overlapped["host_ms_per_step"] > 0
        assert 1 <= overlapped["acceptance_length"] <= 4
        assert overlapped["acceptance"] == "simulated"
    assert len(table(cells).splitlines()) == 5

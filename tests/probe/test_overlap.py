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
    one = np.ones(1, dtype=np.int32)
    work = DecodeWork(bounds=one, nodes=one, depth=0, topk=1)

    def unaccounted() -> float:
        """Of four steps: the seconds that the lane counts neither as busy nor as idle."""
        lane = RooflineLane(capacity, Roofline(), acceptance=0.5)
        lane.start()
        started = time.perf_counter()
        for number in range(4):
            plan = StepPlan(number, StepKind.DECODE, 0 * one, 0 * one, one > 1, None, work)
            lane.launch(plan)
            assert lane.settle().number == number
            time.sleep(0.002)
        took = time.perf_counter() - started
        assert lane.idle_seconds >= 3 * 0.002
        return took - lane.busy_seconds - lane.idle_seconds

    left = [unaccounted() for _ in range(10)]
    assert min(left) >= 0, "a second is counted twice"
    assert min(left) <= 0.02, "the calmest run counts: a busy machine wakes sleepers late"


def test_cells_of_both_loops() -> None:
    cells = measure_overlap((2, 8), steps=12, prompt=40)
    assert [(cell["batch"], cell["overlap"]) for cell in cells] == [(2, True), (2, False), (8, True), (8, False)]
    for cell in cells:
        assert 0 <= cell["idle_share"] < 1 and cell["host_ms_per_step"] > 0
        assert 1 <= cell["acceptance_length"] <= 4
        assert cell["acceptance"] == "simulated"
    assert len(table(cells).splitlines()) == 5


def test_the_overlapped_loop_leaves_the_lane_less_idle() -> None:
    """In real time, where a busy machine may delay either loop: the calmest of a few runs of each counts."""

    def calmest(runs: int) -> dict[bool, float]:
        cells = [cell for _ in range(runs) for cell in measure_overlap((2,), steps=12, prompt=40)]
        return {kind: min(cell["idle_share"] for cell in cells if cell["overlap"] == kind) for kind in (True, False)}

    assert any(shares[True] < shares[False] for shares in map(calmest, (1, 2, 4, 8)))

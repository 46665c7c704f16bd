"""Calibration: a lane's costs are known before it serves, within its time, and a lane without a clock may serve too."""

import numpy as np
import pytest

from aerie.contracts.step import DUMMY_PAGE, StepOutput
from aerie.scheduler.planner import calibration
from aerie.scheduler.planner.calibration import calibrated
from tests import fakes


class ClockedLane:
    """Answers every plan with the times of a simple machine, and keeps the plans. An extend comes one step late."""

    def __init__(self, *, clocked=True):
        self.plans = []
        self._clocked = clocked
        self._late = 0.0

    def launch(self, plan):
        self.plans.append(plan)

    def settle(self):
        plan = self.plans[-1]
        rows, depth = len(plan.rows), plan.decode.depth
        tokens = int(plan.decode.nodes.sum())
        phases = {"verify": 1e-3 + 1e-5 * tokens, **({"extend": self._late} if self._late else {})}
        if depth:
            phases["draft"] = depth * (2e-4 + 1e-5 * rows)
        self._late = 3e-4 if depth else 0.0
        ones = np.ones(rows, dtype=np.int32)
        return StepOutput(
            plan.number,
            np.zeros((rows, depth + 1), dtype=np.int32),
            ones,
            0 * ones,
            depth * ones,
            ones,
            0 * ones,
            phase_seconds=phases if self._clocked else {},
        )


def test_costs_are_known_before_the_first_request():
    lane = ClockedLane()
    costs = calibrated(lane, 64, (1, 3, 6), 64 * 7)
    assert costs.ready
    for rows in (1, 8, 64):
        assert costs.plain(rows, 0) == pytest.approx(1e-3 + 1e-5 * rows, rel=0.2)
        assert costs.draft(6, rows) == pytest.approx(6 * (2e-4 + 1e-5 * rows), rel=0.2)
    assert costs.extend_pass + 2 * costs.pair == pytest.approx(3e-4, rel=0.5)


def test_it_stops_in_time(monkeypatch):
    monkeypatch.setattr(calibration, "SECONDS", 0.0)
    lane = ClockedLane()
    calibrated(lane, 64, (1, 3, 6), 64 * 7)
    assert len(lane.plans) < 12


def test_a_lane_without_a_clock_leaves_them_unknown():
    assert not calibrated(ClockedLane(clocked=False), 8, (1, 3), 64).ready


def test_its_steps_touch_only_the_dummy_page():
    capacity = fakes.capacity()
    lane = ClockedLane()
    calibrated(lane, capacity.rows, (1,), 64)
    assert all(plan.page_updates is None for plan in lane.plans) and DUMMY_PAGE == 0
    assert lane.plans[0].starts is not None and all(not plan.decode.bounds.any() for plan in lane.plans)

"""Calibration: a lane's costs are known before it serves, within its time, and a lane without a clock may serve too."""

from contextlib import closing

import numpy as np
import pytest

from aerie.contracts.config import parse_config
from aerie.contracts.sampling import GREEDY_BELOW
from aerie.contracts.step import DUMMY_PAGE, StepOutput
from aerie.engine.lanes.inline import InlineLane
from aerie.scheduler.planner import calibration
from aerie.scheduler.planner.calibration import calibrated
from aerie.worker import build_worker
from tests import fakes
from tests.spec import models


class ClockedLane:
    """Answers every plan with the times of a simple machine, and keeps the plans. An extend comes one step late."""

    def __init__(
        self, *, clocked=True, capacity=None, pace=lambda seconds: seconds, far=0.0, cold=0.0, deep=0.0, sure=True
    ):
        """`pace` says what work takes that takes so many seconds on a quiet machine; each token that rows hold beyond
        the first 4,096 takes `far` seconds more, and any takes `cold` ones more in the three steps after a prefill;
        each node beyond the second of a row takes `deep` ones more. A head that is not `sure` drafts one level, unless
        some row samples as if it were and has something to draft from.
        """
        self.capacity = capacity or fakes.capacity(rows=64, pages=1024, max_length=1024)
        self.plans = []
        self.lengths = np.zeros((2, 64), dtype=np.int32)
        self._clocked = clocked
        self._pace = pace
        self._far, self._cold, self._deep, self._sure = far, cold, deep, sure
        self._cool, self._seeded = np.zeros((2, 64), dtype=bool)
        self._steps = 0
        self._late = 0.0

    def launch(self, plan):
        self.plans.append(plan)

    def settle(self):
        plan = self.plans[-1]
        rows = len(plan.rows)
        phases, late = {"extend": self._late} if self._late else {}, 0.0
        if plan.prefill is not None:
            depth, lengths = 0, plan.prefill.starts + plan.prefill.counts
            phases["prefill"] = 1e-3 * rows
            self._steps = 0
            self._cool[plan.rows] = (plan.starts.sampling["temperature"] >= GREEDY_BELOW) & (
                plan.starts.sampling["temperature"] < 1e-3
            )
            self._seeded[plan.rows] |= plan.drafting
            if plan.drafting.any():
                late = 2e-4 + 2e-6 * int(plan.prefill.counts.sum())
        else:
            before = self.lengths[plan.generations, plan.rows]
            assert np.array_equal(before, plan.decode.bounds)
            depth, lengths = plan.decode.depth, before + 1
            if not (self._sure or (self._cool & self._seeded)[plan.rows].any()):
                depth = min(depth, 1)
            nodes = np.minimum(plan.decode.nodes, depth + 1)
            sees = int((nodes * before).sum())
            beyond = max(int(before.sum()) - 4096, 0) * self._far
            self._steps += 1
            cold = int(before.sum()) * self._cold if self._steps <= 3 else 0.0
            deep = int(np.maximum(nodes - 2, 0).sum()) * self._deep
            phases["verify"] = 1e-3 + 1e-5 * int(nodes.sum()) + 1e-6 * sees + beyond + cold + deep
        if depth:
            phases["draft"] = depth * (2e-4 + 1e-5 * rows)
            late = 3e-4
        phases = {name: seconds if name == "extend" else self._pace(seconds) for name, seconds in phases.items()}
        self._late = self._pace(late)
        self.lengths[1 - plan.generations, plan.rows] = lengths
        ones = np.ones(rows, dtype=np.int32)
        return StepOutput(
            plan.number,
            np.zeros((rows, depth + 1), dtype=np.int32),
            ones,
            0 * ones,
            depth * ones,
            lengths,
            0 * ones,
            phase_seconds=phases if self._clocked else {},
        )


def test_costs_are_known_before_the_first_request():
    costs = calibrated(ClockedLane(), 64, (1, 3, 6), 64 * 7)
    assert costs.ready
    for rows, context in ((1, 1), (8, 8), (64, 64), (4, 1400), (16, 5000)):
        assert costs.plain(rows, context) == pytest.approx(1e-3 + 1e-5 * rows + 1e-6 * context, rel=0.2)
    for rows, nodes, context in ((1, 7, 400), (4, 28, 2000), (8, 32, 1600)):
        table = costs.table(rows, context, nodes + 1)
        added = 1e-5 * (nodes - rows) + 1e-6 * context * (nodes / rows - 1)
        assert table[nodes] - table[rows] == pytest.approx(added + costs.pair * (nodes - rows), rel=0.3)
    for rows in (1, 8, 64):
        assert costs.draft(6, rows) == pytest.approx(6 * (2e-4 + 1e-5 * rows), rel=0.2)
    assert costs.extend_pass + 2 * costs.pair == pytest.approx(3e-4, rel=0.5)
    for prompt in (10, 100):
        assert costs.catch_up(prompt) == pytest.approx(2e-4 + 2e-6 * prompt, rel=0.2)


def test_tokens_that_no_cache_holds_are_known_to_cost_more():
    capacity = fakes.capacity(rows=64, pages=4096, max_length=1024)
    costs = calibrated(ClockedLane(capacity=capacity, far=2e-6), 64, (1, 3, 6), 64 * 7)
    real = 1e-3 + 64e-5 + 1e-6 * 8192 + 2e-6 * (8192 - 4096)
    assert costs.plain(64, 8192) == pytest.approx(real, rel=0.2)
    assert costs.plain(16, 2048) == pytest.approx(1e-3 + 16e-5 + 1e-6 * 2048, rel=0.1)
    assert costs.plain(1, 1) == pytest.approx(1e-3 + 1.1e-5, rel=0.2)


def test_what_rows_hold_is_taken_for_as_near_as_while_they_decode():
    """Steps just after it was written take longer; with plain ones timed first, drafts seemed to cost nothing."""
    costs = calibrated(ClockedLane(cold=1e-6), 64, (1, 3, 6), 64 * 7)
    for rows, context in ((4, 1400), (16, 2048), (64, 4096)):
        assert costs.plain(rows, context) == pytest.approx(1e-3 + 1e-5 * rows + 1e-6 * context, rel=0.15)
        table = costs.table(rows, context, 2 * rows + 1)
        assert table[2 * rows] > 1.05 * costs.plain(rows, context)


def test_deep_drafts_are_timed_though_a_head_is_unsure_on_rows_that_nobody_owns():
    costs = calibrated(ClockedLane(deep=2e-5, sure=False), 64, (1, 3, 6), 64 * 7)
    for rows in (4, 16, 64):
        real = 1e-3 + 1e-5 * 7 * rows + 1e-6 * 7 * rows + 2e-5 * 5 * rows
        assert costs.table(rows, rows, 7 * rows + 1)[7 * rows] == pytest.approx(real + costs.pair * 6 * rows, rel=0.1)


class Flipping:
    """A machine that is half as fast for a while, as beside a neighbour, then as fast as ever."""

    def __init__(self, seed):
        self._random = np.random.default_rng(seed)
        self._left, self._slower = 0.0, 2.0

    def __call__(self, seconds):
        taken = 0.0
        while seconds > 0.0:
            if self._left <= 0.0:
                self._left, self._slower = self._random.exponential(0.05), 3.0 - self._slower
            span = min(seconds * self._slower, self._left)
            taken, seconds, self._left = taken + span, seconds - span / self._slower, self._left - span
        return taken * float(np.exp(self._random.normal(0.0, 0.05)))


def test_a_machine_whose_speed_changes_looks_slower_and_not_other(monkeypatch):
    monkeypatch.setattr(calibration, "_PAUSE", 0.0)
    slower = []
    for seed in range(20):
        costs = calibrated(ClockedLane(pace=Flipping(seed)), 64, (1, 3, 6), 64 * 7)
        for rows in (1, 4, 16, 64):
            slower.append(costs.plain(rows, rows) / (1e-3 + 1.1e-5 * rows))
    assert min(slower) > 0.8 and max(slower) < 2.5


def test_it_stops_in_time(monkeypatch):
    monkeypatch.setattr(calibration, "SECONDS", 0.0)
    lane = ClockedLane()
    calibrated(lane, 64, (1, 3, 6), 64 * 7)
    decodes = [plan for plan in lane.plans if plan.decode is not None]
    assert len(lane.plans) < 26 and all(len(plan.rows) <= 4 and not plan.decode.depth for plan in decodes)


def test_a_lane_without_a_clock_leaves_them_unknown():
    assert not calibrated(ClockedLane(clocked=False), 8, (1, 3), 64).ready


@pytest.mark.parametrize("pages", [3, 40, 1024])
def test_its_steps_stay_within_the_pool_and_leave_no_page_to_a_row(pages):
    capacity = fakes.capacity(rows=64, pages=pages, max_length=1024)
    lane = ClockedLane(capacity=capacity)
    calibrated(lane, capacity.rows, (1,), 64)
    owned: dict[int, set[int]] = {}
    most = 0
    for plan in lane.plans:
        if plan.starts is not None:
            for row in plan.starts.rows.tolist():
                owned.pop(row, None)
        if plan.page_updates is not None:
            for row, page in zip(plan.page_updates.rows.tolist(), plan.page_updates.pages.tolist(), strict=True):
                owned.setdefault(row, set()).add(page)
        used = [page for pages in owned.values() for page in pages]
        assert len(set(used)) == len(used) and all(DUMMY_PAGE < page < capacity.pages for page in used)
        if plan.decode is not None:
            for row, length in zip(plan.rows.tolist(), plan.decode.bounds.tolist(), strict=True):
                held = len(owned.get(row, ())) * capacity.page_size
                assert length <= 1 or length + capacity.reserve <= held
                most = max(most, length)
    assert not owned and lane.plans[0].starts is not None
    assert most > 1 or pages < 8


def test_an_engine_drafts_to_the_depth_that_is_asked_for(tmp_path):
    """A head of random weights is unsure of everything."""
    target = models.write_target(tmp_path / "target")
    head = models.write(tmp_path / "head", models.specforge_config(), models.safeailab_names(models.head_tensors()))
    lane = InlineLane(
        build_worker(
            parse_config(
                {
                    "model": {"path": str(target), "dtype": "float32", "max_length": 96},
                    "engine": {"kv_tokens": 4096},
                    "scheduler": {"max_running": 4},
                    "spec": {"head": str(head), "depth": 6, "confidence_threshold": 0.9},
                }
            )
        )
    )
    asked, drafted = [], []
    launch, settle = lane.launch, lane.settle

    def noting_plan(plan):
        asked.append(plan.decode.depth if plan.decode is not None else 0)
        launch(plan)

    def noting_output():
        output = settle()
        drafted.append(int(output.drafted.max()))
        return output

    lane.launch, lane.settle = noting_plan, noting_output
    with closing(lane):
        calibrated(lane, 4, (1, 6), 64)
    assert drafted == asked and set(asked) == {0, 1, 6}

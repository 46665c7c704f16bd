"""Rows without head KV that compute their tokens again to get it: which, when, and that no text changes."""

import random

import pytest

from aerie.contracts.messages import Finished
from aerie.contracts.sampling import SpeculationParams
from aerie.scheduler.planner.goodput import Goodput
from aerie.scheduler.recompute import LATER, SOON
from tests import fakes
from tests.scheduler.driver import Driver, generate, random_requests
from tests.scheduler.planner.planners import SPEC, Chaos, planner


class Late(Goodput):
    """Admits requests without head KV, and lets rows compute their tokens again."""

    willing = True

    def pays(self, asked, *, headed):
        return False

    def recomputes(self, asked, *, headed):
        return self.willing


class Restless(Chaos):
    """Drafts anything, and lets any row compute its tokens again."""

    def pays(self, asked, *, headed):
        return self.source.random() < 0.2

    def recomputes(self, asked, *, headed):
        return True


def late(**fields):
    capacity = fakes.capacity(**{"pages": 400, "max_length": 400, "tail": 8, **fields})
    return Driver(capacity, spec=SPEC, planner=planner(kind=Late, level=1e-6), prefill_chunk=64)


def recomputed(driver, *requests):
    """How often each request came back to be read again."""
    driver.run(*requests)
    driver.assert_answered(requests)
    return [driver.reported[one.id].end.usage.preemptions for one in requests]


def test_the_row_with_the_most_to_come_goes_first_and_all_follow():
    driver = late()
    first, second = generate("a", [1] * 5, max_tokens=100), generate("b", [2] * 5, max_tokens=200)
    driver.submit(first, second)
    while not driver.scheduler.rows.headed_rows:
        driver.iterate()
    assert LATER <= len(driver.worker.plans) <= LATER + 4
    [row] = driver.scheduler.rows.drafting.nonzero()[0].tolist()
    assert driver.scheduler.rows.ids[row] == "b"
    began = len(driver.worker.plans)
    while driver.scheduler.rows.headed_rows < 2:
        driver.iterate()
    assert SOON <= len(driver.worker.plans) - began <= SOON + 4
    assert recomputed(driver) == []
    assert [driver.reported[id].end.usage.preemptions for id in "ab"] == [1, 1]
    assert driver.reported["a"].end.usage.accepted > 0 and driver.scheduler.policy.preemptions == 0
    driver.assert_answered([first, second])


@pytest.mark.parametrize("speculation", [SpeculationParams(enabled=False), SpeculationParams(max_draft_tokens=0)])
def test_a_request_that_wants_no_drafts_is_left_alone(speculation):
    assert recomputed(late(), generate("a", [1] * 5, max_tokens=200, speculation=speculation)) == [0]


def test_a_row_that_one_step_cannot_read_is_left_alone():
    assert recomputed(late(), generate("a", [1] * 80, max_tokens=200)) == [0]


def test_no_row_gives_its_pages_away_where_few_are_left():
    assert recomputed(late(pages=20), generate("a", [1] * 5, max_tokens=60)) == [0]


def test_a_planner_that_sees_nothing_in_it_is_asked_rarely():
    driver, asked = late(), []
    driver.scheduler.planner.recomputes = lambda request, *, headed: bool(asked.append(request))
    driver.run(generate("a", [1] * 5, max_tokens=200))
    assert 1 <= len(asked) <= 200 // LATER
    assert [(one.rows, one.prompt + one.answer) for one in asked] == [(1, 205)] * len(asked)
    assert all(one.prompt - one.answered == 5 for one in asked)


@pytest.mark.parametrize(("tail", "overlap"), [(0, True), (8, True), (8, False)])
def test_rows_that_compute_their_tokens_again_at_any_time_change_no_text(tail, overlap, monkeypatch):
    monkeypatch.setattr("aerie.scheduler.recompute.LATER", 1)
    monkeypatch.setattr("aerie.scheduler.recompute.SOON", 1)
    requests = random_requests(150, seed=tail, longest=24, answer=40)
    lane = fakes.DelayedLane(fakes.FakeWorker(fakes.capacity(rows=8, pages=200, tail=tail)), 0)
    own = planner(kind=Restless)
    driver = Driver(lane=lane, spec=SPEC, overlap=overlap, max_waiting=300, prefill_chunk=40, planner=own)
    driver.trickle(requests, random.Random(tail))
    ends = [driver.reported[request.id].end for request in requests]
    assert all(isinstance(end, Finished) for end in ends)
    back = sum(end.usage.preemptions for end in ends) - driver.scheduler.policy.preemptions
    assert back > 20, "rows must really go back"
    for request, end in zip(requests, ends, strict=True):
        (tokens, reason), ids = driver.expect(request), driver.reported[request.id].ids
        assert ids == tokens[: len(ids)] and (end.reason == "abort" or (ids, end.reason) == (tokens, reason))

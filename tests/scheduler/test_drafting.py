"""The shape by load, who is followed by the head, and when rows become plain."""

import pytest

from aerie.contracts.messages import SpeculationParams
from aerie.contracts.shape import NO_DRAFT, DraftShape
from aerie.contracts.spec_section import LoadShape, SpecConfig
from aerie.scheduler.drafting import PATIENCE, WINDOW_DRAFTS, Drafting
from tests import fakes
from tests.scheduler.driver import Driver, generate

BY_LOAD = SpecConfig(
    by_load=(LoadShape(rows=8, depth=2, nodes=3), LoadShape(rows=2, depth=4, topk=2, nodes=9)),
)


@pytest.mark.parametrize(
    ("rows", "shape"),
    [
        (1, DraftShape(4, 2, 9)),
        (2, DraftShape(4, 2, 9)),
        (3, DraftShape(2, 1, 3)),
        (8, DraftShape(2, 1, 3)),
        (9, NO_DRAFT),
    ],
)
def test_shape_by_load(rows, shape):
    assert Drafting(BY_LOAD, head=True).shape(rows) == shape


def test_one_shape_for_every_load():
    assert Drafting(SpecConfig(planner="fixed", depth=2, nodes=3), head=True).shape(10_000) == DraftShape(2, 1, 3)


def test_without_a_head_nothing_is_drafted():
    drafting = Drafting(BY_LOAD, head=False)
    assert drafting.shape(1) == NO_DRAFT and drafting.max_depth == 0
    assert not drafting.extends(generate("a", [1]), 1)


@pytest.mark.parametrize(
    "spec", [SpecConfig(planner="fixed", depth=0, nodes=1), SpecConfig(depth=3, nodes=1), SpecConfig(depth=0, nodes=5)]
)
def test_a_shape_without_nodes_or_depth_drafts_nothing(spec):
    assert Drafting(spec, head=True).shape(1) == NO_DRAFT


@pytest.mark.parametrize(
    ("speculation", "running", "extends"),
    [
        (SpeculationParams(), 1, True),
        (SpeculationParams(), 9, False),
        (SpeculationParams(enabled=False), 1, False),
        (SpeculationParams(max_draft_tokens=0), 1, False),
        (SpeculationParams(max_draft_tokens=1), 1, True),
    ],
)
def test_who_is_followed(speculation, running, extends):
    request = generate("a", [1], speculation=speculation)
    assert Drafting(BY_LOAD, head=True).extends(request, running) is extends


def judged(drafting, *shares):
    """One window of each share of useful drafts -> whether the head was off after it."""
    off = []
    for share in shares:
        for _ in range(WINDOW_DRAFTS // 10):
            drafting.judge(10, round(10 * share))
        off.append(drafting.switched_off)
    return off


def test_a_useless_head_is_switched_off_and_reported_once(caplog):
    drafting = Drafting(BY_LOAD, head=True)
    assert judged(drafting, 0, 0, 0.1, 0, 0) == [False] * 5, "a better window starts the count again"
    assert drafting.shape(1).drafts and not caplog.records
    assert judged(drafting, 0, 0, 0, 0, 0) == [True] * 5
    assert drafting.shape(1) == NO_DRAFT and not drafting.extends(generate("a", [1]), 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "switched off" in caplog.text and drafting.max_depth == 4, "what was sized by it stays"


def test_simulated_acceptance_says_nothing_of_the_head():
    drafting = Drafting(SpecConfig(planner="fixed", simulate_acceptance=1.0), head=True)
    assert not any(judged(drafting, 0, 0, 0, 0))


@pytest.mark.parametrize(("accepted", "off"), [(0, True), (1, False)])
def test_the_loop_asks_a_useless_head_no_more(accepted, off):
    capacity = fakes.capacity()
    worker = fakes.FakeWorker(capacity, acceptance=lambda depth, generator: accepted)
    driver = Driver(lane=fakes.DelayedLane(worker, 0))
    requests = [generate(f"r{index}", [1, 2, index % 50], max_tokens=40, seed=index) for index in range(120)]
    driver.run(*requests)
    driver.assert_answered(requests)
    assert driver.snapshots[-1].head_off is off
    before = driver.scheduler.stats.drafts
    last = generate("last", [3, 4], max_tokens=40, seed=1)
    driver.run(last)
    driver.assert_answered([last])
    assert (driver.scheduler.stats.drafts == before) is off


def test_rows_become_plain_only_after_lasting_load():
    drafting = Drafting(BY_LOAD, head=True)
    busy, calm = drafting.shape(9), drafting.shape(1)
    assert [drafting.gives_up(busy) for _ in range(PATIENCE - 1)] == [False] * (PATIENCE - 1)
    assert not drafting.gives_up(calm), "one calmer step starts the count again"
    assert [drafting.gives_up(busy) for _ in range(PATIENCE)] == [False] * (PATIENCE - 1) + [True]

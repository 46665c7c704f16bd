"""The shape by load, who is followed by the head, and when rows become plain."""

import pytest

from contracts.messages import SpeculationParams
from contracts.spec_section import LoadShape, SpecConfig
from scheduler.drafting import NO_DRAFT, PATIENCE, Drafting, Shape
from tests.scheduler.driver import generate

BY_LOAD = SpecConfig(
    by_load=(LoadShape(rows=8, depth=2, nodes=3), LoadShape(rows=2, depth=4, topk=2, nodes=9)),
)


@pytest.mark.parametrize(
    ("rows", "shape"),
    [(1, Shape(4, 2, 9)), (2, Shape(4, 2, 9)), (3, Shape(2, 1, 3)), (8, Shape(2, 1, 3)), (9, NO_DRAFT)],
)
def test_shape_by_load(rows, shape):
    assert Drafting(BY_LOAD, head=True).shape(rows) == shape


def test_one_shape_for_every_load():
    assert Drafting(SpecConfig(depth=2, nodes=3), head=True).shape(10_000) == Shape(2, 1, 3)


def test_without_a_head_nothing_is_drafted():
    drafting = Drafting(BY_LOAD, head=False)
    assert drafting.shape(1) == NO_DRAFT and drafting.max_depth == 0
    assert not drafting.follows(generate("a", [1]), 1)


@pytest.mark.parametrize(
    "spec", [SpecConfig(depth=0, nodes=1), SpecConfig(depth=3, nodes=1), SpecConfig(depth=0, nodes=5)]
)
def test_a_shape_without_nodes_or_depth_drafts_nothing(spec):
    assert Drafting(spec, head=True).shape(1) == NO_DRAFT


@pytest.mark.parametrize(
    ("speculation", "running", "follows"),
    [
        (SpeculationParams(), 1, True),
        (SpeculationParams(), 9, False),
        (SpeculationParams(enabled=False), 1, False),
        (SpeculationParams(max_draft_tokens=0), 1, False),
        (SpeculationParams(max_draft_tokens=1), 1, True),
    ],
)
def test_who_is_followed(speculation, running, follows):
    request = generate("a", [1], speculation=speculation)
    assert Drafting(BY_LOAD, head=True).follows(request, running) is follows


def test_rows_become_plain_only_after_lasting_load():
    drafting = Drafting(BY_LOAD, head=True)
    busy, calm = drafting.shape(9), drafting.shape(1)
    assert [drafting.gives_up(busy) for _ in range(PATIENCE - 1)] == [False] * (PATIENCE - 1)
    assert not drafting.gives_up(calm), "one calmer step starts the count again"
    assert [drafting.gives_up(busy) for _ in range(PATIENCE)] == [False] * (PATIENCE - 1) + [True]

"""Trees in C++: grown, chosen, walked and moved as the references in torch do it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from aerie.spec.drafters.frontier import Frontier, advance, children
from aerie.spec.trees.tree import Candidates, Level
from tests.native.cpp_here import CPP, needs_cpp
from tests.spec.trees import tree_checks

pytestmark = needs_cpp
SHAPES = [(1, 2), (3, 4), (8, 3), (8, 6), (16, 3)]
"""topk and depth."""


@pytest.mark.parametrize(("topk", "depth"), SHAPES)
@pytest.mark.parametrize("ties", [False, True])
def test_the_same_nodes_are_chosen(topk: int, depth: int, ties: bool) -> None:
    tree_checks.check_the_same_nodes(CPP, topk, depth, ties=ties)


@settings(max_examples=100)
@given(tree_checks.any_candidates())
def test_any_scores_choose_nodes_with_their_parents(candidates: Candidates) -> None:
    tree_checks.check_nodes_of_any_scores(CPP, candidates)


@pytest.mark.parametrize(("topk", "depth"), SHAPES[1:])
def test_the_same_path_is_accepted(topk: int, depth: int) -> None:
    tree_checks.check_the_same_path(CPP, topk, depth)


@pytest.mark.parametrize("width", [2, 5, 8])
def test_the_same_part_of_a_chain_is_accepted(width: int) -> None:
    tree_checks.check_the_same_part_of_a_chain(CPP, width)


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_path_s_kv_is_moved(page: int, dtype: torch.dtype) -> None:
    tree_checks.check_a_path_s_kv_is_moved(CPP, page, dtype=dtype)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("tau", [1.0, 0.7])
@pytest.mark.parametrize(("topk", "count"), [(1, 5), (4, 37), (8, 3000)])
def test_the_same_children(topk: int, count: int, tau: float, mapped: bool) -> None:
    mapping = torch.randperm(2 * count)[:count] if mapped else None

    def target_ids(ids: torch.Tensor) -> torch.Tensor:
        return ids if mapping is None else mapping[ids]

    head: Any = SimpleNamespace(target_ids=target_ids, weights=SimpleNamespace(draft_to_target=mapping))
    z = 4 * torch.randn(6, count)
    z[0, topk:] = -torch.inf  # filters leave as many as are wanted
    frontier = Frontier(-torch.rand(2, 3), torch.arange(6).view(2, 3), torch.ones(2, 3).long(), torch.empty(6, 1))
    ours, reference = (each(head, z, frontier, topk, tau) for each in (CPP[children], children))
    assert torch.equal(ours.tokens, reference.tokens) and torch.equal(ours.parents, reference.parents)
    torch.testing.assert_close(ours.scores, reference.scores, atol=1e-5, rtol=1e-5)
    assert bool((ours.scores <= frontier.scores.repeat_interleave(topk, 1)).all())


@pytest.mark.parametrize("count", [5, 37, 256])
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_has_no_children(count: int, broken: float) -> None:
    """Node i has one broken value at place i; node 0 has nothing else, and the last is sound."""
    head: Any = SimpleNamespace(target_ids=lambda ids: ids, weights=SimpleNamespace(draft_to_target=None))
    z = torch.randn(count + 1, count)
    z[range(count), range(count)] = broken
    z[0] = broken
    own = -torch.arange(float(count + 1))[None]
    frontier = Frontier(own, torch.arange(count + 1)[None], torch.ones(1, count + 1).long(), torch.empty(count + 1, 1))
    ours, reference = (each(head, z, frontier, 4, 0.7) for each in (CPP[children], children))
    torch.testing.assert_close(ours.scores, reference.scores, atol=1e-5, rtol=1e-5)
    reported = ours.scores.view(-1, 4).isfinite().all(1)
    assert reported.tolist() == [False, *[broken == -torch.inf] * (count - 1), True]
    assert all(len(set(ids)) == 4 for level in (ours, reference) for ids in level.tokens.view(-1, 4).tolist())
    assert torch.equal(ours.parents, reference.parents)
    assert torch.equal(ours.tokens.view(-1, 4)[reported], reference.tokens.view(-1, 4)[reported])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("nodes", "topk", "depth"), [(1, 4, 1), (4, 4, 3), (8, 8, 8)])
def test_the_same_frontier(nodes: int, topk: int, depth: int, dtype: torch.dtype) -> None:
    scores = -torch.rand(3, nodes * topk)
    level = Level(torch.randint(0, 99, scores.shape), scores, torch.zeros(scores.shape).long())
    before = Frontier(-torch.rand(3, nodes), torch.zeros(3, nodes).long(), torch.randint(0, 99, (3, nodes)), scores)
    feedback = torch.randn(3 * nodes, 10).to(dtype)
    given = (level, before, feedback, topk, depth, 17)
    (ours, tokens), (reference, expected) = CPP[advance](*given), advance(*given)
    assert torch.equal(tokens, expected)
    for name in ("scores", "indices", "words", "hidden"):
        assert torch.equal(getattr(ours, name), getattr(reference, name)), name


def test_of_equal_children_the_first_is_the_best() -> None:
    head: Any = SimpleNamespace(weights=SimpleNamespace(draft_to_target=None))
    z = torch.zeros(1, 100)
    z[0, 40:43] = 2.0
    root = Frontier(torch.zeros(1, 1), torch.zeros(1, 1).long(), torch.ones(1, 1).long(), torch.empty(1, 1))
    assert CPP[children](head, z, root, 5, 1.0).tokens.tolist() == [[40, 41, 42, 0, 1]]

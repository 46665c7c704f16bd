"""Trees as Triton kernels."""

import pytest
from hypothesis import given, settings

from aerie.engine.bindings import Kernels
from aerie.spec.trees.tree import Candidates
from tests.engine.triton_here import DEVICE, GPU, TRITON, needs_triton
from tests.spec.trees import tree_checks

pytestmark = needs_triton
SHAPES = [(1, 2), (3, 4), (8, 3), *([(8, 6), (16, 3)] if GPU else [])]
"""topk and depth."""


@pytest.mark.parametrize(("topk", "depth"), SHAPES)
@pytest.mark.parametrize("ties", [False, True])
def test_the_same_nodes_are_chosen(topk: int, depth: int, ties: bool) -> None:
    tree_checks.check_the_same_nodes(Kernels("triton", TRITON), topk, depth, ties=ties, device=DEVICE)


@settings(max_examples=60 if GPU else 15)
@given(tree_checks.any_candidates())
def test_any_scores_choose_nodes_with_their_parents(candidates: Candidates) -> None:
    tree_checks.check_nodes_of_any_scores(Kernels("triton", TRITON), candidates, device=DEVICE)


@pytest.mark.parametrize(("topk", "depth"), SHAPES[1:])
def test_the_same_path_is_accepted(topk: int, depth: int) -> None:
    tree_checks.check_the_same_path(Kernels("triton", TRITON), topk, depth, device=DEVICE)


@pytest.mark.parametrize("width", [2, 5, 8])
def test_the_same_part_of_a_chain_is_accepted(width: int) -> None:
    tree_checks.check_the_same_part_of_a_chain(Kernels("triton", TRITON), width, device=DEVICE)


@pytest.mark.parametrize("page", [1, 16])
def test_a_path_s_kv_is_moved(page: int) -> None:
    tree_checks.check_a_path_s_kv_is_moved(Kernels("triton", TRITON), page, device=DEVICE)

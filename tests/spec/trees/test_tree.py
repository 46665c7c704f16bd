"""Selection of nodes and their words against search by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.engine.bindings import REFERENCES
from aerie.spec.trees.tree import (
    Candidates,
    ancestor_words,
    below,
    candidate_count,
    chain,
    select,
    usable_nodes,
    with_plain_rows,
)
from tests.spec.oracle import brute_force_words
from tests.spec.trees.tree_checks import any_bits, any_candidates, check_nodes_of_any_scores


@st.composite
def drafts(draw: st.DrawFn) -> tuple[list[list[tuple[float, int, int]]], list[int], int]:
    """Rows of candidates (score, parent, depth) in level order with scores that often tie, and node counts."""
    topk, depth, rows = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    drop = st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0, 3.0])
    made = []
    for _ in range(rows):
        row, frontier = [(0.0, 0, 0)], [0]
        for level in range(1, depth + 1):
            grown = [(row[p][0] - draw(drop), p, level) for p in frontier for _ in range(topk)]
            first = len(row)
            row += grown
            frontier = draw(st.permutations(range(first, len(row))))[:topk]
        made.append(row)
    counts = [draw(st.integers(1, min(64, len(made[0])))) for _ in range(rows)]
    return made, counts, depth


@settings(max_examples=150)
@given(drafts())
def test_selection_is_the_best_closed_set(case: tuple[list[list[tuple[float, int, int]]], list[int], int]) -> None:
    rows, counts, deepest = case
    scores = torch.tensor([[s for s, _, _ in row] for row in rows])
    tree = select(
        Candidates(
            tokens=torch.arange(scores.numel()).view_as(scores),
            scores=scores,
            parents=torch.tensor([[p for _, p, _ in row] for row in rows]),
            depths=torch.tensor([d for _, _, d in rows[0]]),
            deepest=deepest,
        ),
        torch.tensor(counts),
        max(counts),
    )
    assert tree.parents is not None and tree.words is not None
    for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
        best = sorted(sorted(range(len(row)), key=lambda c, row=row: (-row[c][0], c))[:count])
        parents = [best.index(row[c][1]) for c in best]  # raises where a parent is not chosen
        assert (tree.tokens[index, :count] - index * len(row)).tolist() == best
        assert tree.parents[index, :count].tolist() == parents
        assert tree.depths[index, :count].tolist() == [row[c][2] for c in best]
        assert tree.words[index, :count].tolist() == brute_force_words(parents)


@settings(max_examples=100)
@given(any_candidates())
def test_any_scores_choose_nodes_with_their_parents(candidates: Candidates) -> None:
    check_nodes_of_any_scores(REFERENCES, candidates)


def test_no_child_scores_above_its_parent_nor_nan() -> None:
    edges = any_bits((200, 4), 0.3)
    scores = below(torch.tensor([0.0, -1e-40, -7.5, -torch.inf]), edges)
    assert not scores.isnan().any() and bool((scores <= torch.tensor([0.0, -1e-40, -7.5, -torch.inf])).all())
    assert bool((scores[edges.isnan()] == -torch.inf).all())


@settings(max_examples=100)
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=64))
def test_words_of_any_tree_up_to_64_nodes(choices: list[int]) -> None:
    parents = [0] + [choice % node for node, choice in enumerate(choices[1:], 1)]
    words = ancestor_words(torch.tensor([parents]), len(parents))
    assert words[0].tolist() == brute_force_words(parents)


def test_all_scores_tie_and_parents_stay_in() -> None:
    parents = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 3, 3]])
    depths = torch.tensor([0, 1, 1, 2, 2, 2, 2, 3, 3])
    tree = select(
        Candidates(torch.arange(9)[None], torch.zeros(1, 9), parents, depths, deepest=3), torch.tensor([5]), 5
    )
    assert tree.tokens.tolist() == [[0, 1, 2, 3, 4]]


def test_a_chain_needs_no_words() -> None:
    tree = chain(torch.tensor([[5, 6, 7]]))
    assert tree.words is None and tree.parents is None and tree.depths.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("topk", "depth", "expected"), [(1, 0, 1), (1, 4, 5), (4, 1, 5), (4, 3, 37), (3, 0, 1), (10, 8, 711)]
)
def test_candidate_counts(topk: int, depth: int, expected: int) -> None:
    assert candidate_count(topk, depth) == expected
    assert usable_nodes(np.array([1, 64, expected]), topk, depth).tolist() == [1, min(64, expected), expected]


def test_plain_rows_are_their_root_alone() -> None:
    tree = select(
        Candidates(
            torch.tensor([[7, 8, 9]]),
            torch.tensor([[0.0, -1.0, -2.0]]),
            torch.tensor([[0, 0, 1]]),
            torch.tensor([0, 1, 2]),
            deepest=2,
        ),
        torch.tensor([3]),
        3,
    )
    whole = with_plain_rows(tree, torch.tensor([1]), torch.tensor([40, 7]))
    assert whole.words is not None
    assert whole.tokens.tolist() == [[40, 40, 40], [7, 8, 9]]
    assert whole.words.tolist() == [[1, 2, 4], [1, 3, 7]]

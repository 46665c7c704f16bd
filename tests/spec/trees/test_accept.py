"""Acceptance: the walk against recursion, and its law against the target's by exhaustive enumeration."""

import itertools
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.engine.bindings import Kernels
from aerie.spec.trees.accept import accept
from aerie.spec.trees.tree import Tree, ancestor_words, chain

Law = dict[tuple[int, ...], Fraction]


def make_tree(parents: list[int], tokens: list[int]) -> Tree:
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    table = torch.tensor([parents])
    return Tree(torch.tensor([tokens]), torch.tensor([depths]), table, ancestor_words(table, len(parents)))


def walk(parents: list[int], tokens: list[int], choices: list[int]) -> tuple[list[int], list[int]]:
    """Nodes on the path and tokens committed, by walking from the root."""
    at, path = 0, [0]
    while True:
        children = [n for n in range(1, len(parents)) if parents[n] == at and tokens[n] == choices[at]]
        if not children:
            return path, [choices[n] for n in path]
        at = children[0]
        path.append(at)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], int]:
    """A tree with distinct siblings, choices at its nodes from a small vocabulary, and padding."""
    vocabulary, size = draw(st.integers(2, 4)), draw(st.integers(1, 20))
    parents, tokens = [0], [draw(st.integers(0, 9))]
    for _ in range(size):
        parent = draw(st.integers(0, len(parents) - 1))
        taken = {tokens[n] for n in range(1, len(parents)) if parents[n] == parent}
        free = [t for t in range(vocabulary) if t not in taken]
        if free:
            parents.append(parent)
            tokens.append(draw(st.sampled_from(free)))
    choices = [draw(st.integers(0, vocabulary - 1)) for _ in parents]
    return parents, tokens, choices, draw(st.integers(0, 3))


@settings(max_examples=300)
@given(cases())
def test_the_walk_equals_recursion(kernels: Kernels, case: tuple[list[int], list[int], list[int], int]) -> None:
    parents, tokens, choices, padding = case
    path, committed = walk(parents, tokens, choices)
    tree = make_tree(parents, tokens)
    width = len(parents) + padding
    depth = int(tree.depths.max())
    assert tree.parents is not None and tree.words is not None

    def padded(values: torch.Tensor, fill: int) -> torch.Tensor:
        return torch.cat([values, torch.full((1, padding), fill, dtype=values.dtype)], 1)

    words = padded(tree.words, 0) | torch.where(torch.arange(width) < len(parents), 0, 1 << torch.arange(width))
    whole = Tree(padded(tree.tokens, choices[0]), padded(tree.depths, 0), padded(tree.parents, 0), words)
    got = kernels[accept](whole, padded(torch.tensor([choices]), 0), torch.tensor([len(parents)]), depth)
    count = int(got.counts[0])
    assert got.path is not None
    assert got.path[0, : count + 1].tolist() == path
    assert got.tokens[0, : count + 1].tolist() == committed


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_chains_stop_at_the_first_miss_and_at_their_end(kernels: Kernels, nodes: int) -> None:
    tree = chain(torch.tensor([[9, 1, 2, 3], [9, 1, 5, 3]]))
    got = kernels[accept](tree, torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4]]), torch.tensor([nodes, nodes]), 3)
    assert got.counts.tolist() == [nodes - 1, min(nodes - 1, 1)]
    assert got.path is None


SHAPES = [
    [0],
    [0, 0],
    [0, 0, 1, 2],
    [0, 0, 0],
    [0, 0, 0, 1, 1],
    [0, 0, 0, 1, 3],
]
VOCABULARY = 3
LENGTH = 4


def conditional(context: tuple[int, ...], kind: str) -> list[Fraction]:
    """An exact target distribution of the next token that depends on the whole context."""
    if kind == "one-hot":
        return [Fraction(int(t == sum(context) % VOCABULARY)) for t in range(VOCABULARY)]
    state = sum((token + 2) * 7**place for place, token in enumerate(context))
    weights = [
        (state * (t + 3) * 31 + 17 * t) % 11 + (0 if kind == "zeros" and (state + t) % 3 == 0 else 1)
        for t in range(VOCABULARY)
    ]
    if kind == "zeros":
        weights = [0 if (state + t) % 3 == 0 else w for t, w in enumerate(weights)]
    return [Fraction(w, sum(weights)) for w in weights]


def plain_law(kind: str) -> Law:
    law: Law = {}
    for text in itertools.product(range(VOCABULARY), repeat=LENGTH):
        share = Fraction(1)
        for place in range(LENGTH):
            share *= conditional(text[:place], kind)[text[place]]
        if share:
            law[text] = share
    return law


def spec_law(kernels: Kernels, parents: list[int], tokens: list[int], kind: str, *, coupled: bool) -> Law:
    """One round on this tree, then the target itself up to LENGTH tokens, every set of choices weighed exactly.

    `coupled`: nodes of one depth choose by one shared uniform number (as siblings share noise), else independently. The
    law of what is committed must not depend on it, since a path uses one node a depth.
    """
    paths: list[tuple[int, ...]] = [()]
    for node in range(1, len(parents)):
        paths.append((*paths[parents[node]], tokens[node]))
    laws = [conditional(path, kind) for path in paths]
    depths = [len(path) for path in paths]
    outcomes = list(shared_choices(laws, depths) if coupled else independent_choices(laws))
    tree = make_tree(parents, tokens)
    assert tree.parents is not None and tree.words is not None
    count = len(outcomes)
    many = Tree(*(t.expand(count, -1) for t in (tree.tokens, tree.depths, tree.parents, tree.words)))
    choices = torch.tensor([choice for choice, _ in outcomes])
    got = kernels[accept](many, choices, torch.full((count,), len(parents)), max(depths))
    law: Law = {}
    for index, (_, share) in enumerate(outcomes):
        text = tuple(got.tokens[index, : int(got.counts[index]) + 1].tolist())
        finish(text, share, kind, law)
    return law


def finish(text: tuple[int, ...], share: Fraction, kind: str, law: Law) -> None:
    if len(text) == LENGTH:
        law[text] = law.get(text, Fraction(0)) + share
        return
    for token, chance in enumerate(conditional(text, kind)):
        if chance:
            finish((*text, token), share * chance, kind, law)


def independent_choices(laws: list[list[Fraction]]) -> list[tuple[tuple[int, ...], Fraction]]:
    found = []
    for choice in itertools.product(range(VOCABULARY), repeat=len(laws)):
        share = Fraction(1)
        for law, token in zip(laws, choice, strict=True):
            share *= law[token]
        if share:
            found.append((choice, share))
    return found


def shared_choices(laws: list[list[Fraction]], depths: list[int]) -> list[tuple[tuple[int, ...], Fraction]]:
    """Every node of a depth inverts its law at the same uniform number: pieces between breakpoints, exactly."""
    per_depth = []
    for depth in range(max(depths) + 1):
        nodes = [n for n in range(len(laws)) if depths[n] == depth]
        edges = sorted({sum(laws[n][:t], Fraction(0)) for n in nodes for t in range(VOCABULARY + 1)})
        pieces = []
        for low, high in itertools.pairwise(edges):
            chosen = {}
            for n in nodes:
                total = Fraction(0)
                for token in range(VOCABULARY):
                    total += laws[n][token]
                    if low < total:
                        chosen[n] = token
                        break
            pieces.append((chosen, high - low))
        per_depth.append(pieces)
    found = []
    for combination in itertools.product(*per_depth):
        merged: dict[int, int] = {}
        share = Fraction(1)
        for chosen, width in combination:
            merged |= chosen
            share *= width
        found.append((tuple(merged[n] for n in range(len(laws))), share))
    return found


def distance(one: Law, other: Law) -> Fraction:
    return sum((abs(one.get(t, Fraction(0)) - other.get(t, Fraction(0))) for t in one | other), Fraction(0)) / 2


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("kind", ["dense", "zeros", "one-hot"])
@pytest.mark.parametrize("parents", SHAPES)
def test_the_law_of_committed_tokens_is_the_targets(
    kernels: Kernels, parents: list[int], kind: str, coupled: bool
) -> None:
    tokens = [0] * len(parents)
    for node in range(1, len(parents)):
        siblings = [n for n in range(1, node) if parents[n] == parents[node]]
        tokens[node] = (parents[node] + len(siblings)) % VOCABULARY
    law = spec_law(kernels, parents, tokens, kind, coupled=coupled)
    assert sum(law.values()) == 1
    assert distance(law, plain_law(kind)) == 0


def test_power_accepting_a_child_that_is_not_the_choice_changes_the_law(kernels: Kernels) -> None:
    parents, tokens = [0, 0, 1], [0, 1, 2]
    law: Law = {}
    for choice, share in independent_choices(
        [conditional((), "dense"), conditional((1,), "dense"), conditional((1, 2), "dense")]
    ):
        finish((1, *choice[1:2]), share, "dense", law)  # the first child always accepted
    assert distance(law, plain_law("dense")) > Fraction(1, 100)
    assert distance(spec_law(kernels, parents, tokens, "dense", coupled=False), plain_law("dense")) == 0

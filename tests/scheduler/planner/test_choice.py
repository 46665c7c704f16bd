"""The optimiser against brute force over every assignment of nodes, its speed's allocations, and its objectives."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerie.scheduler.planner.choice import ChainChoice, Objective

DEPTHS = (1, 2, 3)


def tables(source, rows, drafting, *, by_rows):
    """A staircase of step costs, and costs of drafting that depend on the number of drafting rows, or do not."""
    table = np.maximum.accumulate(1 + np.cumsum(source.integers(0, 3, rows + drafting * 3 + 1)) * source.random())
    draft = np.cumsum(source.random((len(DEPTHS), 1)), axis=0) * source.random() * 2
    draft = np.repeat(draft, drafting + 1, axis=1)
    if by_rows:
        draft += np.arange(drafting + 1) * source.random() * 0.2
    return table, draft


def brute_force(survivals, rows, table, draft, *, latency=False):
    """The best score over every assignment that drafts."""
    best = -np.inf
    sums = np.concatenate([np.zeros((len(survivals), 1)), np.cumsum(survivals, axis=1)], axis=1)
    for counts in itertools.product(range(4), repeat=len(survivals)):
        nodes, drafting = sum(counts), sum(count > 0 for count in counts)
        if not nodes:
            continue
        for index, depth in enumerate(DEPTHS):
            if depth < max(counts):
                continue
            gained = [sums[row, count] for row, count in enumerate(counts)]
            seconds = table[rows + nodes] + draft[index, drafting]
            tokens = rows + sum(gained)
            if latency:
                score = sum(np.log1p(gained)) - rows * np.log(seconds)
            else:
                score = tokens / seconds
            best = max(best, score)
    return best


def score_of(chosen, nodes, survivals, rows, table, draft, *, latency=False):
    """What the chosen nodes are worth by the same arithmetic."""
    gained = [survivals[row, : count - 1].sum() for row, count in enumerate(nodes)]
    seconds = table[rows + nodes.sum() - len(nodes)] + draft[DEPTHS.index(chosen.depth), int((nodes > 1).sum())]
    tokens = rows + sum(gained)
    if latency:
        return sum(np.log1p(gained)) - rows * np.log(seconds)
    return tokens / seconds


@given(seed=st.integers(0, 10**6), drafting=st.integers(1, 4), plain=st.integers(0, 3), latency=st.booleans())
def test_the_choice_is_the_best_of_all_assignments(seed, drafting, plain, latency):
    source = np.random.default_rng(seed)
    rows = drafting + plain
    survivals = np.cumprod(source.random((drafting, 3)), axis=1)
    table, draft = tables(source, rows, drafting, by_rows=False)
    choice = ChainChoice(8, DEPTHS, Objective.LATENCY if latency else Objective.GOODPUT)
    chosen = choice.choose(survivals, rows, table, draft, spared=np.zeros(3))
    nodes = np.zeros(drafting, dtype=np.int32)
    choice.nodes(nodes)
    assert nodes.sum() - drafting == chosen.nodes and nodes.max() - 1 <= chosen.depth
    found = score_of(chosen, nodes, survivals, rows, table, draft, latency=latency)
    assert found == pytest.approx(brute_force(survivals, rows, table, draft, latency=latency), rel=1e-9)


@given(seed=st.integers(0, 10**6), drafting=st.integers(1, 4), share=st.floats(0, 1))
def test_nodes_that_are_not_verified_cost_nothing(seed, drafting, share):
    """Of those that fail, this share is not: so the costs are those of the nodes that are left, on average."""
    source = np.random.default_rng(seed)
    survivals = np.cumprod(source.random((drafting, 3)), axis=1)
    table, draft = tables(source, drafting, drafting, by_rows=False)
    choice, nodes = ChainChoice(8, DEPTHS), np.zeros(drafting, dtype=np.int32)
    chosen = choice.choose(survivals, drafting, table, draft, spared=np.full(3, share))
    choice.nodes(nodes)
    taken = np.arange(3) < nodes[:, None] - 1
    verified = drafting + (1 - share * (1 - survivals))[taken].sum()
    prices = table[[int(verified), int(np.ceil(verified))]] + draft[DEPTHS.index(chosen.depth), 0]
    assert prices.min() - 1e-9 <= chosen.seconds <= prices.max() + 1e-9
    whole = choice.choose(survivals, drafting, table, draft, spared=np.zeros(3))
    assert chosen.tokens / chosen.seconds >= whole.tokens / whole.seconds - 1e-9


@given(seed=st.integers(0, 10**6), drafting=st.integers(1, 4))
def test_rows_that_differ_in_one_number_are_chosen_best_with_costs_by_row(seed, drafting):
    source = np.random.default_rng(seed)
    chances = 1 / (1 + np.exp(-source.normal(size=3) - 2 * source.normal(size=(drafting, 1))))
    survivals = np.cumprod(chances, axis=1)
    table, draft = tables(source, drafting, drafting, by_rows=True)
    choice = ChainChoice(8, DEPTHS)
    chosen = choice.choose(survivals, drafting, table, draft, spared=np.zeros(3))
    nodes = np.zeros(drafting, dtype=np.int32)
    choice.nodes(nodes)
    found = score_of(chosen, nodes, survivals, drafting, table, draft)
    assert found == pytest.approx(brute_force(survivals, drafting, table, draft), rel=1e-9)


def test_ties_do_not_grow_the_step():
    survivals = np.full((4, 3), 0.5)
    table = np.array([1.0] * 7 + [9.0] * 20)
    choice = ChainChoice(4, DEPTHS)
    chosen = choice.choose(survivals, 4, table, np.zeros((3, 5)), spared=np.zeros(3))
    nodes = np.zeros(4, dtype=np.int32)
    choice.nodes(nodes)
    assert chosen.nodes == 2 and nodes.sum() == 6


def test_choices_for_64_rows_keep_nothing():
    source = np.random.default_rng(1)
    survivals = np.cumprod(source.random((64, 6)), axis=1)
    table, draft = 1 + np.arange(64 * 7 + 1) * 0.02, np.ones((4, 65)) * 0.1
    choice, spared = ChainChoice(64, (1, 2, 4, 6)), np.zeros(6)
    nodes = np.zeros(64, dtype=np.int32)

    def choose():
        choice.choose(survivals, 64, table, draft, spared=spared)
        choice.nodes(nodes)

    choose()
    tracemalloc.start()
    try:
        choose()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(50):
            choose()
        assert tracemalloc.get_traced_memory()[0] - before < 1024, "less than one array of 64 rows and two depths"
    finally:
        tracemalloc.stop()

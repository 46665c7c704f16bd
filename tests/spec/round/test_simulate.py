"""Simulated acceptance: the mean that was asked for, on paths that were drafted, and never more than they hold."""

from typing import Any

import numpy as np
import pytest
import torch

from aerie.contracts.errors import ConfigError
from aerie.contracts.sampling import SamplingParams
from aerie.contracts.spec_section import SpecConfig
from aerie.spec.build import check_simulation
from aerie.spec.round.simulate import simulate
from aerie.spec.trees.tree import Tree, ancestor_words, chain
from tests.engine.rounds import Rounds
from tests.spec.conftest import MakeWorker

ROWS = 4000


def drawn(tree: Tree, choices: torch.Tensor, nodes: torch.Tensor, depth: int, length: float) -> Any:
    keys = torch.randint(0, 2**62, (ROWS,), generator=torch.Generator().manual_seed(1))
    return simulate(tree, choices, nodes, depth, length=length, keys=keys, positions=torch.arange(ROWS))


@pytest.mark.parametrize("length", [1.0, 2.0, 2.6, 4.9, 5.0])
def test_chains_commit_the_mean_that_was_asked_for(length: float) -> None:
    tokens = torch.arange(10, 15).expand(ROWS, 5)
    choices = torch.arange(20, 25).expand(ROWS, 5)
    found = drawn(chain(tokens), choices, torch.full((ROWS,), 5), 4, length)
    assert float(found.counts.float().mean()) + 1 == pytest.approx(length, abs=0.04)
    row = int(found.counts.argmax())
    taken = int(found.counts[row])
    assert found.tokens[row, : taken + 1].tolist() == [*range(11, 11 + taken), 20 + taken]


def test_a_tree_s_path_is_one_that_was_drafted() -> None:
    parents = torch.tensor([[0, 0, 0, 2, 3, 3]]).expand(ROWS, 6)
    depths = torch.tensor([[0, 1, 1, 2, 3, 3]]).expand(ROWS, 6)
    tree = Tree(torch.arange(6).expand(ROWS, 6), depths, parents, ancestor_words(parents, 3))
    found = drawn(tree, torch.arange(50, 56).expand(ROWS, 6), torch.full((ROWS,), 6), 3, 3.5)
    assert set(found.counts.tolist()) == {2, 3}
    assert float(found.counts.float().mean()) == pytest.approx(2.5, abs=0.04)
    for count, path, committed in ((2, [0, 2, 3], [2, 3, 53]), (3, [0, 2, 3, 4], [2, 3, 4, 54])):
        row = found.counts.tolist().index(count)
        assert found.path[row, : count + 1].tolist() == path
        assert found.tokens[row, : count + 1].tolist() == committed


def test_no_row_commits_more_than_it_verified() -> None:
    tokens = torch.zeros(ROWS, 5, dtype=torch.int64)
    found = drawn(chain(tokens), tokens, torch.arange(ROWS) % 5 + 1, 4, 5.0)
    assert bool((found.counts == torch.arange(ROWS) % 5).all())


def test_deeper_than_drafts_reach_is_refused() -> None:
    check_simulation(SpecConfig(depth=5, nodes=6, simulate_acceptance=6))
    with pytest.raises(ConfigError, match=r"6\.5, and drafts of depth 5 commit at most 6"):
        check_simulation(SpecConfig(depth=5, nodes=6, simulate_acceptance=6.5))


@pytest.mark.parametrize("shape", [{"depth": 4, "topk": 1, "nodes": 5}, {"depth": 4, "topk": 4, "nodes": 24}])
def test_a_worker_commits_so_many_tokens_a_step(make_worker: MakeWorker, shape: dict[str, int]) -> None:
    rounds = Rounds(make_worker(simulate_acceptance=2.5))
    params = [SamplingParams(temperature=t, max_tokens=100, seed=3) for t in (0.0, 1.0, 0.0, 1.0)]
    rows = [rounds.add(index, [7 + index, 2], own, drafting=True) for index, own in enumerate(params)]
    rounds.finish(rows, **shape)
    assert [len(row.out) for row in rows] == [100] * 4
    steps = np.concatenate([row.accepted[1:-1] for row in rows])
    assert 1 + steps.mean() == pytest.approx(2.5, abs=0.15)

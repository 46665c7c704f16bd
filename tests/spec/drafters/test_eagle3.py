"""Drafting against a rollout that recomputes everything for every node: chains, trees, greedy and sampled rows."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.sampling.choose import Needs
from aerie.engine.sampling.noise import gumbel
from aerie.engine.state.transfer import HostTransfer
from aerie.engine.step.batch import cover
from aerie.spec.drafters.drafter import Growth, Roots
from aerie.spec.drafters.eagle3 import Eagle3, scratch_slots
from aerie.spec.trees.ranking import RoundNoise, ranking, step_noise
from aerie.spec.trees.tree import Tree
from tests.spec import models
from tests.spec.oracle import rollout
from tests.spec.scene import LENGTHS, PAGE, VD, Scene, grown, make_tables


def eagle_scene(folder: Path, target: Path, temperatures: tuple[float, ...], kernels: Kernels = REFERENCES) -> Scene:
    tensors = models.head_tensors(draft_vocabulary=VD)
    return Scene(folder, target, temperatures, models.head_config(draft_vocabulary=VD), tensors, kernels=kernels)


def assert_is_rollout(scene: Scene, tree: Tree, growth: Growth, sharpness: float) -> None:
    ids = scene.head.target_ids(torch.arange(VD))
    for row in range(3):
        count = int(growth.nodes[row])
        expected = rollout(
            scene.dense,
            scene.tokens[row],
            scene.taps[row],
            depth=growth.depth,
            topk=growth.topk,
            nodes=count,
            target_ids=ids,
            z_of=scene.z_of(row, growth.depth, sharpness),
            taus=growth.edge_temperatures,
        )
        assert tree.tokens[row, :count].tolist() == [node.token for node in expected]
        assert tree.depths[row, :count].tolist() == [node.depth for node in expected]
        if tree.parents is not None:
            parents = [0 if node.parent is None else expected.index(node.parent) for node in expected]
            assert tree.parents[row, :count].tolist() == parents


@pytest.mark.parametrize("sharpness", [1.0, 1.5, math.inf])
@pytest.mark.parametrize("temperatures", [(0, 0, 0), (0.8, 1.2, 1.0), (0.0, 1.0, 0.0)])
@pytest.mark.parametrize(
    ("depth", "topk", "nodes", "taus"),
    [
        (1, 1, (2, 2, 2), ()),
        (4, 1, (5, 3, 1), ()),
        (1, 3, (4, 2, 3), ()),
        (3, 2, (6, 9, 4), ()),
        (4, 4, (16, 8, 12), (1.0, 2.0, 0.5)),
    ],
)
@torch.inference_mode()
def test_drafts_equal_the_rollout(
    tmp_path: Path,
    target_folder: Path,
    depth: int,
    topk: int,
    nodes: tuple[int, ...],
    taus: tuple[float, ...],
    temperatures: tuple[float, ...],
    sharpness: float,
    kernels: Kernels,
) -> None:
    scene = eagle_scene(tmp_path, target_folder, temperatures, kernels)
    growth = grown(depth, topk, nodes, taus)
    tree = Eagle3(scene.head).draft(scene.tables, scene.roots(), growth, scene.ranking(depth, sharpness))
    assert_is_rollout(scene, tree, growth, sharpness)


@torch.inference_mode()
def test_drafting_leaves_the_rows_pairs_alone_and_writes_their_scratch_only(
    tmp_path: Path, target_folder: Path, kernels: Kernels
) -> None:
    scene = eagle_scene(tmp_path, target_folder, (0, 0, 0), kernels)
    before = scene.head.pool.keys.clone()
    growth = grown(4, 4, [16, 16, 16])
    Eagle3(scene.head).draft(scene.tables, scene.roots(), growth, scene.ranking(4, 1.5))
    changed = (scene.head.pool.keys != before).flatten(2).any(-1)[0]
    own = torch.zeros_like(changed)
    for row, length in enumerate(LENGTHS):
        scratch = torch.arange(length, length + scratch_slots(4, 4))
        own[scene.tables.slots(torch.full_like(scratch, row), scratch)] = True
    assert bool((own == changed).all())


def test_a_full_word_of_scratch(tmp_path: Path, target_folder: Path, kernels: Kernels) -> None:
    scene = eagle_scene(tmp_path, target_folder, (0, 1.0, 0), kernels)
    growth = grown(9, 8, [64])
    tables = scene.tables
    roots = Roots(
        torch.arange(3)[:1],
        torch.tensor([0]),
        torch.tensor([3]),
        scene.seeds[:1],
        cover(np.array([64], np.int32), PAGE, HostTransfer()),
    )
    needs = Needs(noise=False, filters=False, bans=False)
    rank = ranking(tables, torch.tensor([0]), needs, noise=None, sharpness=1.5)
    tree = Eagle3(scene.head).draft(tables, roots, growth, rank)
    assert tree.tokens.shape == (1, 64)
    assert int(tree.depths.max()) <= 9


@torch.inference_mode()
def test_filters_cut_the_drafts_support_as_the_targets() -> None:
    tables = make_tables((1.0, 0.7, 0.0), top_k=[2, 0, 1], top_p=[1, 0.5, 1], min_p=[0, 0, 0.9])
    rows, logits = torch.arange(3), torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(3, 1)
    needs = Needs(noise=True, filters=True, bans=False)
    noise = step_noise(REFERENCES, tables, rows, torch.tensor([4, 4, 4]), 1, torch.arange(4))
    z = ranking(tables, rows, needs, noise=noise, sharpness=1.5).rank(logits, 1)
    assert torch.isfinite(z).tolist() == [[True, True, False, False], [True, False, False, False], [True] * 4]
    torch.testing.assert_close(z[2], logits[2])


@torch.inference_mode()
def test_several_nodes_a_row_share_its_noise() -> None:
    tables = make_tables((1.0, 0.5))
    rows = torch.arange(2)
    needs = Needs(noise=True, filters=False, bans=False)
    mapping = torch.tensor([5, 0, 2])
    lengths = torch.tensor([3, 9])
    whole, drafted = (
        RoundNoise(step_noise(REFERENCES, tables, rows, lengths, 2, tokens), drafted=only)
        for tokens, only in ((torch.arange(6), False), (mapping, True))
    )
    noise = whole.of(lambda values: values, mapping)
    assert noise is not None
    assert torch.equal(noise, drafted.of(lambda values: values, mapping))  # type: ignore[arg-type]
    assert drafted.at(rows, rows) is None, "verification makes its own"
    rank = ranking(tables, rows, needs, noise=noise, sharpness=2.0)
    z = rank.rank(torch.zeros(6, 3), 2).view(2, 3, 3)
    for row, length in enumerate((3, 9)):
        own = gumbel(tables.noise_keys[row : row + 1], torch.tensor([length + 2]), mapping)
        torch.testing.assert_close(z[row], own.expand(3, -1))

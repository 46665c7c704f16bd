"""P-EAGLE's drafts: levels against a dense restatement, trees against a search."""

import heapq
from pathlib import Path

import pytest
import torch
from torch import Tensor

from aerie.spec.drafters.peagle import PEagle
from tests.spec import models
from tests.spec.scene import LENGTHS, VD, Scene, grown

MASK = models.VOCABULARY - 1


class ParallelScene(Scene):
    """With a P-EAGLE head of two layers, whose embedding is its own."""

    def __init__(self, folder: Path, target: Path, temperatures: tuple[float, ...]) -> None:
        tensors = models.peagle_tensors(draft_vocabulary=VD)
        config = models.peagle_config(draft_vocabulary=VD)
        super().__init__(folder, target, temperatures, config, tensors, highest=MASK)
        self.drafter = PEagle(self.head, MASK, tensors["mask_hidden"][0])

    def z(self, row: int, depth: int, sharpness: float) -> list[Tensor]:
        """Restated: the row's pairs and depth - 1 mask slots after them, all causal; z of each level."""
        masks, pairs = depth - 1, LENGTHS[row]
        hidden = self.dense.fuse(torch.cat([self.taps[row], self.dense.tensors["mask_hidden"][0].expand(masks, -1)]))
        tokens = torch.tensor([*self.tokens[row][1:], *[MASK] * masks])
        total = pairs + masks
        output = self.dense.forward(tokens, hidden, torch.arange(total), torch.ones(total, total).tril().bool())
        logs = self.dense.logits(output[pairs - 1 :]).log_softmax(-1)
        how = self.z_of(row, depth, sharpness)
        return [log_q if how is None else how[level][0] * log_q + how[level][1] for level, log_q in enumerate(logs)]


def best_first(z: list[Tensor], topk: int, nodes: int, taus: tuple[float, ...]) -> list[tuple[float, tuple[int, ...]]]:
    """The best `nodes` paths of ranks by a heap that holds every child of what it gave."""
    edges = []
    for level, values in enumerate(z):
        tau = taus[level] if level < len(taus) else 1.0
        edges.append((values / tau).log_softmax(-1).topk(topk).values.tolist())
    heap: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    found: list[tuple[float, tuple[int, ...]]] = []
    while heap and len(found) < nodes:
        score, path = heapq.heappop(heap)
        found.append((score, path))
        if len(path) < len(edges):
            for rank, edge in enumerate(edges[len(path)]):
                heapq.heappush(heap, (score - edge, (*path, rank)))
    return found


def paths_of(tokens: list[int], parents: list[int]) -> set[tuple[int, ...]]:
    """The tokens from the root's child down to each node."""
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tokens[1:], parents[1:], strict=True):
        paths.append((*paths[parent], token))
    assert len(set(paths)) == len(paths)  # no two nodes say the same
    return set(paths)


@pytest.mark.parametrize("sharpness", [1.5, float("inf")])
@pytest.mark.parametrize("temperatures", [(0, 0, 0), (0.8, 0.0, 1.0)])
@pytest.mark.parametrize(
    ("depth", "topk", "nodes", "taus"),
    [(1, 3, (4, 2, 3), ()), (3, 2, (6, 9, 4), ()), (5, 4, (32, 17, 24), (1.0, 2.0, 0.5)), (7, 10, (60, 8, 40), ())],
)
@torch.inference_mode()
def test_trees_are_the_best_of_all_paths(
    tmp_path: Path,
    target_folder: Path,
    depth: int,
    topk: int,
    nodes: tuple[int, ...],
    taus: tuple[float, ...],
    temperatures: tuple[float, ...],
    sharpness: float,
) -> None:
    scene = ParallelScene(tmp_path, target_folder, temperatures)
    growth = grown(depth, topk, nodes, taus)
    tree = scene.drafter.draft(scene.tables, scene.roots(), growth, scene.ranking(depth, sharpness))
    assert tree.parents is not None and tree.words is not None
    ids = scene.head.target_ids(torch.arange(VD))
    for row, count in enumerate(nodes):
        z = scene.z(row, depth, sharpness)
        children = [ids[values.topk(topk).indices].tolist() for values in z]
        expected = best_first(z, topk, count, taus)
        parents = tree.parents[row, :count].tolist()
        assert all(parent < node for node, parent in enumerate(parents) if node)
        assert paths_of(tree.tokens[row, :count].tolist(), parents) == {
            tuple(children[level][rank] for level, rank in enumerate(path)) for _, path in expected
        }


@pytest.mark.parametrize("temperatures", [(0, 0, 0), (0.8, 0.0, 1.0)])
@torch.inference_mode()
def test_chains_are_the_best_of_each_level(
    tmp_path: Path, target_folder: Path, temperatures: tuple[float, ...]
) -> None:
    scene = ParallelScene(tmp_path, target_folder, temperatures)
    ids = scene.head.target_ids(torch.arange(VD))
    for depth in (1, 2, 7):
        growth = grown(depth, 1, [depth + 1, 2, depth + 1])
        tree = scene.drafter.draft(scene.tables, scene.roots(), growth, scene.ranking(depth, 1.5))
        for row, count in enumerate(growth.nodes.tolist()):
            z = scene.z(row, depth, 1.5)
            drafted = [int(ids[values.argmax()]) for values in z]
            assert tree.tokens[row, :count].tolist() == [scene.tokens[row][-1], *drafted][:count]


@torch.inference_mode()
def test_drafting_writes_one_slot_a_level_past_the_pairs(tmp_path: Path, target_folder: Path) -> None:
    scene = ParallelScene(tmp_path, target_folder, (0, 0, 0))
    before = scene.head.pool.keys.clone()
    growth = grown(5, 4, [16, 16, 16])
    scene.drafter.draft(scene.tables, scene.roots(), growth, scene.ranking(5, 1.5))
    changed = (scene.head.pool.keys != before).flatten(2).any(-1)
    own = torch.zeros_like(changed)
    for row, length in enumerate(LENGTHS):
        scratch = torch.arange(length, length + 4)
        own[:, scene.tables.slots(torch.full_like(scratch, row), scratch)] = True
    assert torch.equal(own, changed)


@torch.inference_mode()
def test_power_mask_slots_a_position_late_are_seen(
    tmp_path: Path, target_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the restatement's logits, which the trees above are made from."""

    scene = ParallelScene(tmp_path, target_folder, (0, 0, 0))
    ids = scene.head.target_ids(torch.arange(VD))

    def logits() -> list[Tensor]:
        return [part[1].log_softmax(-1) for part in scene.drafter.levels(scene.tables, scene.roots(), 5)]

    expected = scene.z(1, 5, 1.0)
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(logits(), expected, strict=True)) and len(ids) == VD
    right = scene.head.rotations
    monkeypatch.setattr(scene.head, "rotations", lambda positions: right(positions + 1))
    moved = [not torch.allclose(a, b, atol=1e-3) for a, b in zip(logits(), expected, strict=True)]
    assert moved == [False, True, True, True, True]

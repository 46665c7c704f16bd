"""Drafting against a rollout that recomputes everything for every node: chains, trees, greedy and sampled rows."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from contracts.sampling import MAX_STOP_IDS
from contracts.step import PageUpdates, RowStarts
from engine.batch import attention_inputs, cover
from engine.choose import Needs
from engine.noise import gumbel
from engine.row_tables import RowTables
from engine.transfer import HostTransfer
from spec.draft import Growth, Roots, draft, scratch_slots
from spec.extend import Pairs, extend
from spec.head import Head
from spec.ranking import Ranking, ranking, step_noise
from spec.tree import Tree
from tests.spec import models
from tests.spec.oracle import DenseHead, rollout

PAGE = 4
LENGTHS = (5, 12, 1)
VD = 32


class Scene:
    """Three rows whose pairs are in the head's pool, on scattered pages, and the same as plain lists."""

    def __init__(self, folder: Path, target: Path, temperatures: tuple[float, ...]) -> None:
        from tests.spec.test_loader import Lent, load

        tensors = models.head_tensors(draft_vocabulary=VD)
        written = models.write(
            folder, models.head_config(draft_vocabulary=VD), tensors | models.draft_maps(VD, ordered=False)
        )
        loaded = load(written, target)
        pool = type(loaded.pool)(
            layers=1, pages=64, page_size=PAGE, kv_heads=models.KV_HEADS, head_dim=models.HEAD_DIM, dtype=torch.float32
        )
        self.head = Head(loaded.config, loaded.weights, pool, loaded.attention, positions=64)
        pool.keys.fill_(1e4)
        pool.values.fill_(-1e4)
        self.dense = DenseHead(tensors, Lent(target).embeddings)
        self.temperatures = temperatures
        self.tables = make_tables(temperatures)
        torch.manual_seed(8)
        self.tokens = [torch.randint(models.VOCABULARY, (n + 1,)).tolist() for n in LENGTHS]
        self.taps = [torch.randn(n, 3 * models.HIDDEN) for n in LENGTHS]
        self.seeds = self.fill()

    def fill(self) -> Tensor:
        """Extends every row's pairs -> seeds [3, H]."""
        seeds = []
        for row, length in enumerate(LENGTHS):
            rows, positions = torch.full((length,), row), torch.arange(length)
            inputs = attention_inputs(
                self.tables,
                torch.tensor([row]),
                torch.tensor([0]),
                cover(np.array([length], np.int32), PAGE, HostTransfer()),
                torch.tensor([0, length], dtype=torch.int32),
            )
            tokens = torch.tensor(self.tokens[row][1:])
            slots = self.tables.slots(rows, positions)
            seeds.append(extend(self.head, Pairs(tokens, self.taps[row], positions, slots, inputs))[-1])
        return torch.stack(seeds)

    def roots(self) -> Roots:
        return Roots(
            owners=torch.arange(3),
            lengths=torch.tensor(LENGTHS),
            tokens=torch.tensor([tokens[-1] for tokens in self.tokens]),
            seeds=self.seeds,
            covered=cover(np.array(LENGTHS, np.int32) + 24, PAGE, HostTransfer()),
        )

    def ranking(self, depth: int, sharpness: float) -> Ranking:
        needs = Needs(noise=any(self.temperatures), filters=False, bans=False)
        noise = None
        if needs.noise:
            noise = step_noise(self.tables, torch.arange(3), torch.tensor(LENGTHS), depth, models.VOCABULARY)
        return ranking(
            self.tables,
            torch.arange(3),
            needs,
            noise=noise,
            mapping=self.head.weights.draft_to_target,
            sharpness=sharpness,
        )

    def z_of(self, row: int, depth: int, sharpness: float) -> list[tuple[float, Tensor]] | None:
        """Scale and noise of each level, restated."""
        temperature, none = self.temperatures[row], torch.zeros(VD)
        if temperature == 0:
            return None
        if math.isinf(sharpness):
            return [(1 / temperature, none)] * depth
        ids = self.head.target_ids(torch.arange(VD))
        key = self.tables.noise_keys[row : row + 1]
        return [
            (sharpness / temperature, gumbel(key, torch.tensor([LENGTHS[row] + level]), ids)[0])
            for level in range(1, depth + 1)
        ]


def grown(depth: int, topk: int, nodes: Sequence[int], taus: tuple[float, ...] = ()) -> Growth:
    return Growth(depth, topk, torch.tensor(nodes), max(nodes), taus)


def make_tables(temperatures: tuple[float, ...], **filters: list[float]) -> RowTables:
    tables = RowTables(4, 16, PAGE)
    rows = len(temperatures)
    tables.staged_start(
        RowStarts(
            rows=np.arange(rows, dtype=np.int32),
            noise_keys=np.arange(rows, dtype=np.int64) * 2**40 + 77,
            temperatures=np.array(temperatures, np.float32),
            top_ks=np.array(filters.get("top_ks", [0] * rows), np.int32),
            top_ps=np.array(filters.get("top_ps", [1] * rows), np.float32),
            min_ps=np.array(filters.get("min_ps", [0] * rows), np.float32),
            prompt_lengths=np.ones(rows, np.int32),
            limits=np.full(rows, 100, np.int32),
            min_lengths=np.zeros(rows, np.int32),
            stop_ids=np.full((rows, MAX_STOP_IDS), -1, np.int32),
        ),
        HostTransfer(),
    )()
    order = np.random.default_rng(0).permutation(np.arange(1, 49)).astype(np.int32)
    pages = PageUpdates(np.repeat(np.arange(3), 16).astype(np.int32), np.tile(np.arange(16), 3).astype(np.int32), order)
    tables.staged_pages(pages, HostTransfer())()
    return tables


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
) -> None:
    scene = Scene(tmp_path, target_folder, temperatures)
    growth = grown(depth, topk, nodes, taus)
    tree = draft(scene.head, scene.tables, scene.roots(), growth, scene.ranking(depth, sharpness))
    assert_is_rollout(scene, tree, growth, sharpness)


@torch.inference_mode()
def test_drafting_leaves_the_rows_pairs_alone_and_writes_their_scratch_only(
    tmp_path: Path, target_folder: Path
) -> None:
    scene = Scene(tmp_path, target_folder, (0, 0, 0))
    before = scene.head.pool.keys.clone()
    growth = grown(4, 4, [16, 16, 16])
    draft(scene.head, scene.tables, scene.roots(), growth, scene.ranking(4, 1.5))
    changed = (scene.head.pool.keys != before).flatten(2).any(-1)[0]
    own = torch.zeros_like(changed)
    for row, length in enumerate(LENGTHS):
        scratch = torch.arange(length, length + scratch_slots(4, 4, parallel=False))
        own[scene.tables.slots(torch.full_like(scratch, row), scratch)] = True
    assert bool((own == changed).all())


def test_a_full_word_of_scratch(tmp_path: Path, target_folder: Path) -> None:
    scene = Scene(tmp_path, target_folder, (0, 1.0, 0))
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
    rank = ranking(tables, torch.tensor([0]), needs, noise=None, mapping=None, sharpness=1.5)
    tree = draft(scene.head, tables, roots, growth, rank)
    assert tree.tokens.shape == (1, 64)
    assert int(tree.depths.max()) <= 9


@torch.inference_mode()
def test_filters_cut_the_drafts_support_as_the_targets() -> None:
    tables = make_tables((1.0, 0.7, 0.0), top_ks=[2, 0, 1], top_ps=[1, 0.5, 1], min_ps=[0, 0, 0.9])
    rows, logits = torch.arange(3), torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(3, 1)
    needs = Needs(noise=True, filters=True, bans=False)
    noise = step_noise(tables, rows, torch.tensor([4, 4, 4]), 1, 4)
    z = ranking(tables, rows, needs, noise=noise, mapping=None, sharpness=1.5).rank(logits, 1)
    assert torch.isfinite(z).tolist() == [[True, True, False, False], [True, False, False, False], [True] * 4]
    torch.testing.assert_close(z[2], logits[2])


@torch.inference_mode()
def test_several_nodes_a_row_share_its_noise() -> None:
    tables = make_tables((1.0, 0.5))
    rows = torch.arange(2)
    noise = step_noise(tables, rows, torch.tensor([3, 9]), 2, 6)
    needs = Needs(noise=True, filters=False, bans=False)
    mapping = torch.tensor([5, 0, 2])
    rank = ranking(tables, rows, needs, noise=noise, mapping=mapping, sharpness=2.0)
    z = rank.rank(torch.zeros(6, 3), 2).view(2, 3, 3)
    for row, length in enumerate((3, 9)):
        own = gumbel(tables.noise_keys[row : row + 1], torch.tensor([length + 2]), mapping)
        torch.testing.assert_close(z[row], own.expand(3, -1))

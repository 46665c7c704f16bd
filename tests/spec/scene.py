"""Rows in the middle of an answer, as drafting finds them, and the same as plain lists for its oracles.

Used by test_draft and test_peagle.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.sampling import MAX_STOP_IDS, SamplingParams, columns_of
from aerie.contracts.step import PageUpdates, RowStarts
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.sampling.choose import Needs
from aerie.engine.sampling.noise import gumbel
from aerie.engine.state.row_tables import RowTables
from aerie.engine.state.transfer import HostTransfer
from aerie.engine.step.batch import attention_inputs, cover
from aerie.spec.drafters.drafter import Growth, Pairs, Roots
from aerie.spec.drafters.eagle3 import Eagle3
from aerie.spec.heads.head import Head
from aerie.spec.trees.ranking import Ranking, RoundNoise, ranking, step_noise
from tests.spec import models
from tests.spec.oracle import DenseHead

PAGE = 4
LENGTHS = (5, 12, 1)
VD = 32


class Scene:
    """Three rows whose pairs are in the head's pool, on scattered pages. Their tokens are below `highest`."""

    def __init__(
        self,
        folder: Path,
        target: Path,
        temperatures: tuple[float, ...],
        config: dict[str, Any],
        tensors: dict[str, Tensor],
        highest: int = models.VOCABULARY,
        kernels: Kernels = REFERENCES,
    ) -> None:
        from tests.spec.checkpoints.test_loader import Lent, load

        self.kernels = kernels
        loaded = load(models.write(folder, config, tensors | models.draft_maps(VD, ordered=False)), target, kernels)
        layers = loaded.config.layers
        pool = type(loaded.pool)(
            layers=layers,
            pages=64,
            page_size=PAGE,
            kv_heads=models.KV_HEADS,
            head_dim=models.HEAD_DIM,
            dtype=torch.float32,
        )
        self.head = Head(loaded.config, loaded.weights, pool, loaded.attention, positions=64, kernels=kernels)
        pool.keys.fill_(1e4)
        pool.values.fill_(-1e4)
        self.dense = DenseHead(tensors, tensors.get("embed_tokens.weight", Lent(target).embeddings), layers=layers)
        self.temperatures = temperatures
        self.tables = make_tables(temperatures)
        torch.manual_seed(8)
        self.tokens = [torch.randint(highest, (n + 1,)).tolist() for n in LENGTHS]
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
            pairs = Pairs(tokens, self.taps[row], positions, slots, inputs, torch.tensor([length - 1]))
            seeds.append(Eagle3(self.head).extend(pairs))
        return torch.cat(seeds)

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
        noise = RoundNoise(None)
        if needs.noise:
            tokens = torch.arange(models.VOCABULARY)
            noise = RoundNoise(
                step_noise(self.kernels, self.tables, torch.arange(3), torch.tensor(LENGTHS), depth, tokens)
            )
        return ranking(
            self.tables,
            torch.arange(3),
            needs,
            noise=noise.of(lambda values: values, self.head.weights.draft_to_target),
            sharpness=sharpness,
            kernels=self.kernels,
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


def make_tables(temperatures: tuple[float, ...], **filters: list[Any]) -> RowTables:
    tables = RowTables(4, 16, PAGE)
    rows = len(temperatures)
    own = [{name: values[row] for name, values in filters.items()} for row in range(rows)]
    sampling = [SamplingParams(temperature=t, **fields) for t, fields in zip(temperatures, own, strict=True)]
    tables.staged_start(
        RowStarts(
            rows=np.arange(rows, dtype=np.int32),
            noise_keys=np.arange(rows, dtype=np.int64) * 2**40 + 77,
            sampling=columns_of(sampling),
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

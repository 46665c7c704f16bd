"""The decoder equals `transformers`: prefill, chunks, decode, a tree pass, and the taps, for every family."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from aerie.engine.attention import make_attention
from aerie.engine.attention.inputs import AttentionInputs, AttentionShape
from aerie.engine.bindings import Kernels
from aerie.engine.model.config import read_model_config
from aerie.engine.model.decoder import Decoder
from aerie.engine.model.target import TargetOutput
from aerie.engine.model.weights import Weights
from aerie.engine.state.kv_pool import KVPool
from tests.engine.conftest import FAMILIES, SIZES, shaken

Models = Callable[[str], tuple[Path, Any]]
BOUNDARIES = (2, 4, 5)
PAGE = 8
PARENTS = [-1, 0, 0, 1, 1, 2, 3]
"""Of a tree's nodes; the root is node 0."""


class Alone:
    """One row that owns the pages 1, 2, ... of a pool."""

    def __init__(self, folder: Path, kernels: Kernels, attention: str = "auto") -> None:
        config = read_model_config(folder)
        shape = AttentionShape(config.heads, config.kv_heads, config.head_dim, PAGE, torch.float32, torch.device("cpu"))
        pool = KVPool(
            layers=config.layers,
            pages=12,
            page_size=PAGE,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            dtype=torch.float32,
        )
        weights = Weights(folder, torch.float32)
        self.decoder = Decoder(
            config,
            weights,
            pool,
            make_attention(attention, shape, kernels),
            positions=200,
            boundaries=BOUNDARIES,
            kernels=kernels,
        )
        self.length = 0

    @torch.inference_mode()
    def run(
        self, ids: list[int], *, depths: list[int] | None = None, words: list[int] | None = None, taps: bool = False
    ) -> TargetOutput:
        """Runs ids after the row's length, causally or as tree nodes; the length stays as it is."""
        count = len(ids)
        pages = -(-(self.length + count) // PAGE)
        inputs = AttentionInputs(
            qo_indptr=torch.tensor([0, count], dtype=torch.int32),
            kv_indptr=torch.tensor([0, pages], dtype=torch.int32),
            kv_indices=torch.arange(1, pages + 1, dtype=torch.int32),
            last_page_len=torch.tensor([self.length + count - (pages - 1) * PAGE], dtype=torch.int32),
            prefix_lens=torch.tensor([self.length]),
            words=None if words is None else torch.tensor(words),
            page_size=PAGE,
        )
        slots = self.length + torch.arange(count) + PAGE
        positions = self.length + torch.tensor(depths if depths is not None else list(range(count)))
        return self.decoder.forward(torch.tensor(ids), positions, slots, inputs, None, taps=taps)


@torch.inference_mode()
def dense(model: Any, ids: list[int]) -> torch.Tensor:
    """[tokens, vocabulary] by transformers."""
    logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits.float()


def close(given: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(given, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_in_chunks_then_decode(models: Models, family: str, kernels: Kernels) -> None:
    folder, model = models(family)
    ids = torch.randint(2, 300, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    expected, row = dense(model, ids), Alone(folder, kernels)
    for begin, end in ((0, 23), (23, 40), *((at, at + 1) for at in range(40, 60))):
        close(row.run(ids[begin:end]).logits, expected[begin:end])
        row.length = end


@pytest.mark.parametrize("family", FAMILIES)
def test_every_node_of_a_tree_sees_its_path_alone(models: Models, family: str, kernels: Kernels) -> None:
    folder, model = models(family)
    generator = torch.Generator().manual_seed(2)
    prefix = torch.randint(2, 300, (21,), generator=generator).tolist()
    nodes = torch.randint(2, 300, (len(PARENTS),), generator=generator).tolist()
    paths = [_path(node) for node in range(len(PARENTS))]
    row = Alone(folder, kernels)
    row.run(prefix)
    row.length = len(prefix)
    words = [sum(1 << node for node in path) for path in paths]
    given = row.run(nodes, depths=[len(path) - 1 for path in paths], words=words).logits
    for node, path in enumerate(paths):
        close(given[node], dense(model, prefix + [nodes[at] for at in path])[-1])


@pytest.mark.parametrize("family", FAMILIES)
def test_taps_are_the_residuals_that_enter_their_layers(models: Models, family: str, kernels: Kernels) -> None:
    folder, model = models(family)
    ids = list(range(40, 57))
    with torch.inference_mode():
        states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    taps = Alone(folder, kernels).run(ids, taps=True).taps
    assert taps is not None
    close(taps, torch.cat([states[boundary][0] for boundary in BOUNDARIES], -1))


@pytest.mark.parametrize("kind", ["linear"])
def test_scaled_positions(tmp_path: Path, kind: str, kernels: Kernels) -> None:
    torch.manual_seed(3)
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0}
    model = shaken(LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=rope)))
    model.save_pretrained(tmp_path)
    ids = list(range(3, 70))
    close(Alone(tmp_path, kernels).run(ids).logits, dense(model, ids))


def test_only_wanted_rows_have_logits(models: Models, kernels: Kernels) -> None:
    folder, model = models("llama")
    row = Alone(folder, kernels, "reference")
    whole = row.run([5, 6, 7, 8]).logits
    close(whole, dense(model, [5, 6, 7, 8]))
    assert whole.dtype == torch.float32


def _path(node: int) -> list[int]:
    return [] if node < 0 else [*_path(PARENTS[node]), node]

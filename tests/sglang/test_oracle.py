"""Two implementations of the same mathematics: SGLang's models and `llama_eagle3` head beside Aerie's decoder and head,
with the same weights, in fp32.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from aerie.engine.attention.cpu import CpuAttention
from aerie.engine.attention.inputs import AttentionInputs
from aerie.engine.model.config import read_model_config
from aerie.engine.state.kv_pool import KVPool
from aerie.spec.checkpoints.loader import load_head, open_head
from aerie.spec.heads.head import Head
from tests.engine.conftest import SIZES, shaken
from tests.sglang.forked import run_forked
from tests.sglang.models import Rows, close, load
from tests.spec import models
from tests.spec.models import (
    draft_maps,
    head_config,
    head_tensors,
    safeailab_names,
    specforge_config,
    write,
    write_target,
)

DEMO = Path("models/demo")
TAPS = (2, 4, 5)
PROMPT = [3, 9, 14, 2, 33, 8, 5, 60, 41, 17, 22]


def qwen3(folder: Path) -> Path:
    torch.manual_seed(0)
    shaken(Qwen3ForCausalLM(Qwen3Config(**SIZES))).save_pretrained(folder)
    return folder


class Rounding:
    """By how far fp32 alone moves logits: transformers' own in fp32 beside fp64. More where attention is sharp."""

    def __init__(self, folder: Path) -> None:
        self._models = [
            AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
            for dtype in (torch.float32, torch.float64)
        ]

    def share(self, texts: list[list[int]], new: list[int]) -> float:
        """Of the largest logit at the last `new[i]` tokens of `texts[i]`."""
        single, double = (
            torch.cat([model(torch.tensor([text])).logits[0, -count:] for text, count in zip(texts, new, strict=True)])
            for model in self._models
        )
        return float((single - double).abs().max() / double.abs().max())


@pytest.mark.parametrize("family", ["llama", "qwen3", "demo"])
def test_logits_and_taps_equal_those_of_the_native_decoder(family: str, tmp_path: Path) -> None:
    folder = {"llama": write_target, "qwen3": qwen3, "demo": lambda _: DEMO / "target"}[family](tmp_path / "target")

    def body() -> None:
        found, expected = (Rows(load(folder, TAPS, kind=kind)) for kind in ("sglang-model", "native"))
        rounding = Rounding(folder)
        texts: list[list[int]] = [[], []]
        for lengths, tokens in (([0, 0], [PROMPT, PROMPT[:4]]), ([11, 4], [[7], [9]]), ([12, 5], [[1, 2, 3], [4]])):
            ours, theirs = expected.run([0, 1], lengths, tokens), found.run([0, 1], lengths, tokens)
            texts = [text + own for text, own in zip(texts, tokens, strict=True)]
            with torch.inference_mode():
                rounded = rounding.share(texts, [len(own) for own in tokens])
            assert rounded < 1e-5
            close(theirs.logits, ours.logits, max(1e-5, 4 * rounded))
            assert ours.taps is not None
            assert theirs.taps is not None
            close(theirs.taps, ours.taps, 1e-5)

    run_forked(body)


HEADS: dict[str, tuple[dict[str, Any], dict[str, Tensor]]] = {
    "SafeAILab's layout": (
        head_config(draft_vocabulary=32, eagle_aux_hidden_state_layer_ids=[1, 3, 4]),
        safeailab_names(head_tensors(draft_vocabulary=32)) | draft_maps(32),
    ),
    "SpecForge's layout": (
        specforge_config(TAPS, draft_vocabulary=32),
        head_tensors(draft_vocabulary=32) | draft_maps(32),
    ),
    "a norm before fc": (
        specforge_config(TAPS, norm_before_fc=True),
        head_tensors(extra={"input_norm.weight": (3 * models.HIDDEN,)}),
    ),
    "a norm for each tap, normed feedback": (
        specforge_config(TAPS, fc_norm=True, norm_output=True),
        head_tensors(extra={f"fc_norm.{tap}.weight": (models.HIDDEN,) for tap in range(3)}),
    ),
    "a RoPE of its own, said to be short": (
        specforge_config(TAPS, rope_theta=500.0, max_position_embeddings=8),
        head_tensors(),
    ),
}


@pytest.mark.parametrize("name", [*HEADS, "the demo head"])
def test_sglangs_head_equals_ours(name: str, tmp_path: Path) -> None:
    if name == "the demo head":
        target_folder, head_folder = DEMO / "target", DEMO / "head"
    else:
        target_folder, head_folder = write_target(tmp_path / "target"), write(tmp_path / "head", *HEADS[name])

    def body() -> None:
        compare_heads(target_folder, head_folder)

    run_forked(body)


def compare_heads(target_folder: Path, head_folder: Path) -> None:
    """Pairs of a prompt, then two levels of a draft tree, through both heads: outputs, logits, ids, feedback."""
    from aerie.engine.sglang.attention import PagedAttention
    from aerie.engine.sglang.draft import SglangDraft

    target = load(target_folder, TAPS)
    shape = read_model_config(target_folder)
    checkpoint = open_head(head_folder, shape, torch.float32)
    pools = [make_pool(checkpoint.config) for _ in range(2)]
    ours = Head(checkpoint.config, load_head(checkpoint, target), pools[0], CpuAttention(), positions=200)
    backend = PagedAttention(CpuAttention(), pools[1])
    theirs = SglangDraft(head_folder, backend, torch.float32, torch.device("cpu"))
    theirs.share_embeddings(target.embeddings)
    with torch.inference_mode():
        wide = len(checkpoint.config.taps) * shape.hidden_size
        taps = torch.randn(len(PROMPT), wide, generator=torch.Generator().manual_seed(5))
        positions, tokens = torch.arange(len(PROMPT)), torch.tensor(PROMPT)
        fused = theirs.fuse(taps)
        close(fused, ours.fuse(taps), 1e-4)
        outputs = both(ours, theirs, tokens, fused, positions, positions, 0, None)
        for level, count in ((0, 2), (1, 4)):
            feedback = ours.read(outputs)[1][-1:].expand(count, -1)
            ids = torch.arange(count) + 11 * level + 3
            slots = len(PROMPT) + 2 * level + torch.arange(count)
            words = (torch.ones(count, dtype=torch.int64) << (2 * level + torch.arange(count))) | (level * 0b11)
            outputs = both(
                ours, theirs, ids, feedback, torch.full((count,), len(PROMPT) + level), slots, len(PROMPT), words
            )
        expected = ours.target_ids(torch.arange(checkpoint.config.draft_vocabulary))
        mapping = theirs.draft_to_target
        assert torch.equal(expected, torch.arange(len(expected)) if mapping is None else mapping)


def both(
    ours: Head,
    theirs: Any,
    tokens: Tensor,
    hidden: Tensor,
    positions: Tensor,
    slots: Tensor,
    prefix: int,
    words: Tensor | None,
) -> Tensor:
    """Both heads' pass over one row -> our pre-norm outputs."""
    inputs = AttentionInputs(
        qo_indptr=torch.tensor([0, len(tokens)], dtype=torch.int32),
        kv_indptr=torch.tensor([0, 2], dtype=torch.int32),
        kv_indices=torch.tensor([1, 2], dtype=torch.int32),
        last_page_len=torch.tensor([16], dtype=torch.int32),
        prefix_lens=torch.tensor([prefix], dtype=torch.int64),
        words=words,
        page_size=16,
    )
    planned, slots = ours.attention.plan(inputs), slots + 16
    found = theirs.forward(tokens, hidden.clone(), positions, slots, planned)
    outputs = ours.forward(tokens, hidden.clone(), ours.rotations(positions), slots, planned)
    close(found, outputs, 1e-4)
    for own, their in zip(ours.read(outputs), theirs.read(found), strict=True):
        close(their, own, 1e-4)
    return outputs


def make_pool(config: Any) -> KVPool:
    return KVPool(
        layers=config.layers,
        pages=4,
        page_size=16,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        dtype=torch.float32,
    )

"""What training exports is what serving loads: the same maps, and the same outputs pair by pair and draft by draft."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from aerie.engine.attention import make_attention
from aerie.engine.model.config import Rope, read_model_config
from aerie.engine.state.kv_pool import KVPool
from aerie.spec.checkpoints.loader import load_head, open_head
from aerie.spec.heads.head import Head as ServedHead
from aerie.train.heads.draft_vocabulary import draft_vocabulary
from aerie.train.heads.head import Head
from aerie.train.heads.layout import load_exported, write_head
from aerie.train.heads.unroll import unroll
from aerie.train.pipeline.data.served import OutputEnd, ServedTarget
from aerie.train.pipeline.fitting.initial import shape_for
from tests.spec.heads.test_head import PAGE, pass_inputs, run_pairs

_STEPS = 3


@dataclass(frozen=True)
class _Lender:
    embeddings: Tensor
    output_weight: Tensor


def _served(exported: Path, folder: Path, target: LlamaForCausalLM) -> ServedHead:
    opened = open_head(exported, read_model_config(folder), torch.float32)
    config = opened.config
    pool = KVPool(
        layers=1, pages=9, page_size=PAGE, kv_heads=config.kv_heads, head_dim=config.head_dim, dtype=torch.float32
    )
    weights = load_head(opened, _Lender(target.get_input_embeddings().weight, target.lm_head.weight))
    return ServedHead(config, weights, pool, make_attention("reference"), positions=64)


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"rope": Rope(5e4, "llama3", 4.0, 1.0, 4.0, 24)},
        {"tap_norms": True, "norm_output": True},
        {"norm_before_residual": True},
        {"norm_output": True, "norm_before_residual": True},
    ],
    ids=str,
)
@torch.inference_mode()
def test_serving_computes_what_was_trained(
    switches: dict[str, Any], target: Path, llama: LlamaForCausalLM, tmp_path: Path
) -> None:
    end, boundaries = OutputEnd(target), (2, 4, 5)
    vocabulary = draft_vocabulary([], kept=300, size=400, always=range(100, 140))
    torch.manual_seed(0)
    started = Head(replace(shape_for(end.model, boundaries, 300), **switches))
    for name, weight in started.named_parameters():
        if "norm" in name:  # norms of ones would hide where they stand
            torch.nn.init.uniform_(weight, 0.5, 2.0)
    write_head(started, vocabulary, tmp_path)
    trained = load_exported(tmp_path, started.shape)
    served = _served(tmp_path, target, llama)
    assert served.config.taps == boundaries and served.config.source != "" and served.config.rope == started.shape.rope
    assert served.target_ids(torch.arange(300)).tolist() == vocabulary.draft_to_target.tolist()

    ids = torch.randint(400, (1, 12))
    states = ServedTarget(target, boundaries, longest=12, dtype="float32", threads=1).states(ids[0].tolist())
    taps = states.taps.float()[None]
    outputs = list(unroll(trained, end.embedding, ids, taps, _STEPS))
    column = 12 - 1 - _STEPS
    output = run_pairs(served, ids[0, 1 : column + 2], taps[0, : column + 1])
    assert torch.allclose(output, outputs[0][0, : column + 1], atol=1e-4)
    assert torch.allclose(served.read(output).logits, trained.logits(outputs[0][0, : column + 1]), atol=1e-4)
    for step in range(1, _STEPS):
        position = torch.tensor([column + step])
        planned = served.attention.plan(pass_inputs(1, column + step))
        hidden = served.read(output[-1:]).feedback
        token = ids[0, column + 1 + step : column + 2 + step]
        output = served.forward(token, hidden, served.rotations(position), position + PAGE, planned)
        assert torch.allclose(output[0], outputs[step][0, column], atol=1e-4)

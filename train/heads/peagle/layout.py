"""A trained P-EAGLE head in the layout that vLLM reads and `spec/` serves.

Files: `config.json` (taps as boundaries, at the top level) and `model.safetensors` (bf16; `layers.*`, the target's
embedding with the mask's row in it, `mask_hidden`, `d2t`, `t2d`).
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from aerie.train.heads.draft_vocabulary import DraftVocabulary
from aerie.train.heads.layout import rope_fields
from aerie.train.heads.peagle.head import ParallelHead, ParallelShape

_MASK_ROW = "mask_embedding"


def write_parallel(
    head: ParallelHead, embedding: Tensor, vocabulary: DraftVocabulary, out: Path, *, depth: int
) -> None:
    """Writes config and weights, with the target's `embedding` [vocabulary, hidden]; this is the only place where
    weights are rounded to bf16.
    """
    weights = {name: weight.detach() for name, weight in head.named_parameters() if name != _MASK_ROW}
    table = embedding.detach().clone()
    table[head.shape.mask_token] = head.mask_embedding.detach()
    weights["embed_tokens.weight"] = table
    rounded = {name: weight.to(torch.bfloat16).contiguous() for name, weight in weights.items()}
    maps = {"d2t": vocabulary.d2t, "t2d": vocabulary.t2d}
    save_file({**rounded, **maps}, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(parallel_config(head.shape, depth), indent=2) + "\n")


def load_parallel_head(folder: Path, shape: ParallelShape) -> ParallelHead:
    """Reads the exported weights back, in fp32."""
    tensors = load_file(folder / "model.safetensors")
    head = ParallelHead(shape)
    named = {name: tensors[name].float() for name, _ in head.named_parameters() if name != _MASK_ROW}
    head.load_state_dict({**named, _MASK_ROW: tensors["embed_tokens.weight"][shape.mask_token].float()})
    return head


def parallel_config(shape: ParallelShape, depth: int) -> dict[str, object]:
    """The `config.json`. vLLM takes the mask token from `ptd_token_id`; `num_depths` is the trained depth."""
    head = shape.head
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": head.hidden,
        "intermediate_size": head.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": head.heads,
        "num_key_value_heads": head.kv_heads,
        "head_dim": head.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": head.eps,
        **rope_fields(head.rope),
        "max_position_embeddings": head.max_positions,
        "vocab_size": head.vocabulary,
        "draft_vocab_size": head.draft_vocabulary,
        "target_hidden_size": head.hidden,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eagle_aux_hidden_state_layer_ids": list(head.boundaries),
        "norm_before_residual": head.norm_before_residual,
        "ptd_token_id": shape.mask_token,
        "num_depths": depth,
    }

"""Tiny random models and heads in the layouts of published pairs: as many layers, heads in the same proportion, the
same names and config fields, other sizes. Used by test_pairs.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.spec.models import draft_maps, random_tensors, write

HEAD_DIM = 8
_LLAMA3 = {
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "max_position_embeddings": 131072,
    "eos_token_id": [90, 91, 92],
    "torch_dtype": "bfloat16",
}
_QWEN3 = {
    "rope_theta": 1000000,
    "rope_scaling": None,
    "max_position_embeddings": 40960,
    "sliding_window": None,
    "use_sliding_window": False,
    "attention_bias": False,
    "head_dim": HEAD_DIM,
    "eos_token_id": 91,
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True)
class StandIn:
    """Of a pair of `configs/head/`. `wide` is the residual stream's width, `producer` who wrote the head."""

    layers: int
    heads: int
    kv_heads: int
    wide: int
    producer: str
    fields: dict[str, Any] = field(default_factory=dict)
    architecture: str = "LlamaForCausalLM"
    vocabulary: int = 96
    drafted: int = 24


STAND_INS = {
    "llama-3.1-8b": StandIn(32, 8, 2, 64, "specforge", _LLAMA3),
    "llama-3.3-70b": StandIn(80, 16, 2, 128, "specforge", _LLAMA3),
    "deepseek-r1-distill-llama-8b": StandIn(32, 8, 2, 64, "safeailab", _LLAMA3),
    "qwen3-8b": StandIn(36, 8, 2, 64, "specforge", _QWEN3, "Qwen3ForCausalLM"),
    # Its heads together are wider than its residual stream, as in the real one.
    "qwen3-32b": StandIn(64, 16, 2, 80, "specforge", _QWEN3, "Qwen3ForCausalLM"),
    # Every head has keys of its own, and its head drafts the whole vocabulary.
    "vicuna-13b": StandIn(
        40, 4, 4, 32, "safeailab", {"max_position_embeddings": 2048, "torch_dtype": "float16"}, drafted=96
    ),
}


def write_target(folder: Path, like: StandIn) -> Path:
    config = _shape(like) | {
        "architectures": [like.architecture],
        "model_type": "qwen3" if like.architecture.startswith("Qwen3") else "llama",
        "num_hidden_layers": like.layers,
        "vocab_size": like.vocabulary,
        "tie_word_embeddings": False,
        **like.fields,
    }
    shapes = {
        "model.embed_tokens.weight": (like.vocabulary, like.wide),
        "model.norm.weight": (like.wide,),
        "lm_head.weight": (like.vocabulary, like.wide),
    }
    for layer in range(like.layers):
        prefix = f"model.layers.{layer}"
        shapes |= _layer(prefix, like, like.wide) | {f"{prefix}.input_layernorm.weight": (like.wide,)}
        if like.architecture.startswith("Qwen3"):
            shapes |= {f"{prefix}.self_attn.{one}_norm.weight": (HEAD_DIM,) for one in "qk"}
    # Small weights, so that eighty layers of them leave numbers that fp32 can tell apart.
    return write(folder, config, random_tensors(shapes, 0, 0.1))


def write_head(folder: Path, like: StandIn, taps: tuple[int, ...]) -> Path:
    """As its producer publishes it: SafeAILab pickled and in half precision, without taps; SpecForge with layer outputs
    for taps.
    """
    config = _shape(like) | {
        "architectures": ["LlamaForCausalLM" if like.producer == "safeailab" else "LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "vocab_size": like.vocabulary,
        "draft_vocab_size": like.drafted,
        "max_position_embeddings": 2048,
        "head_dim": HEAD_DIM,
        "tie_word_embeddings": False,
    }
    shapes = {
        "fc.weight": (like.wide, 3 * like.wide),
        "norm.weight": (like.wide,),
        "lm_head.weight": (like.drafted, like.wide),
        "midlayer.hidden_norm.weight": (like.wide,),
        "midlayer.input_layernorm.weight": (like.wide,),
        **_layer("midlayer", like, 2 * like.wide),
    }
    tensors: dict[str, Tensor] = random_tensors(shapes, 1)
    if like.drafted < like.vocabulary:
        tensors |= draft_maps(like.drafted, like.vocabulary)
    if like.producer == "specforge":
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in taps]}
        return write(folder, config, tensors)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "float16"}), encoding="utf-8")
    halves = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    torch.save(halves, folder / "pytorch_model.bin")
    return folder


def _shape(like: StandIn) -> dict[str, Any]:
    return {
        "hidden_size": like.wide,
        "intermediate_size": 2 * like.wide,
        "num_attention_heads": like.heads,
        "num_key_value_heads": like.kv_heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
    }


def _layer(prefix: str, like: StandIn, width: int) -> dict[str, tuple[int, ...]]:
    """Of a decoder layer whose attention reads `width` values."""
    return {
        f"{prefix}.self_attn.q_proj.weight": (like.heads * HEAD_DIM, width),
        f"{prefix}.self_attn.k_proj.weight": (like.kv_heads * HEAD_DIM, width),
        f"{prefix}.self_attn.v_proj.weight": (like.kv_heads * HEAD_DIM, width),
        f"{prefix}.self_attn.o_proj.weight": (like.wide, like.heads * HEAD_DIM),
        f"{prefix}.post_attention_layernorm.weight": (like.wide,),
        f"{prefix}.mlp.gate_proj.weight": (2 * like.wide, like.wide),
        f"{prefix}.mlp.up_proj.weight": (2 * like.wide, like.wide),
        f"{prefix}.mlp.down_proj.weight": (like.wide, 2 * like.wide),
    }

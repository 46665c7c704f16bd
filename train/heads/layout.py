"""A trained head in the layout of SpecForge and SGLang, which `spec/` and other engines read.

Files: `config.json` and `model.safetensors` (bf16; `fc`, `midlayer.*`, `norm`, `lm_head`, `d2t`, `t2d`). The embedding
is the target's and is not written. The pipeline's export adds other layouts and the model card.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from aerie.engine.model.config import Rope
from aerie.train.heads.draft_vocabulary import DraftVocabulary
from aerie.train.heads.head import Head, HeadShape


def write_head(head: Head, vocabulary: DraftVocabulary, out: Path) -> None:
    """Writes config and weights; this is the only place where weights are rounded to bf16."""
    weights = {name: weight.detach().to(torch.bfloat16).contiguous() for name, weight in head.named_parameters()}
    maps = {"d2t": vocabulary.d2t, "t2d": vocabulary.t2d}
    save_file({**weights, **maps}, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(specforge_config(head.shape), indent=2) + "\n")


def load_exported(folder: Path, shape: HeadShape) -> Head:
    """Reads the exported weights back, in fp32."""
    tensors = load_file(folder / "model.safetensors")
    head = Head(shape)
    head.load_state_dict({name: tensors[name].float() for name, _ in head.named_parameters()})
    return head


def specforge_config(shape: HeadShape) -> dict[str, object]:
    """The `config.json` of this layout."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": shape.eps,
        **rope_fields(shape.rope),
        "max_position_embeddings": shape.max_positions,
        "vocab_size": shape.vocabulary,
        "draft_vocab_size": shape.draft_vocabulary,
        "target_hidden_size": shape.hidden,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        # Layer outputs, by the convention of this layout: one less than Aerie's boundaries.
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [boundary - 1 for boundary in shape.boundaries],
            "use_aux_hidden_state": True,
        },
        **({"fc_norm": True} if shape.tap_norms else {}),
        **({"norm_output": True} if shape.norm_output else {}),
        **({"norm_before_residual": True} if shape.norm_before_residual else {}),
    }


def rope_fields(rope: Rope) -> dict[str, object]:
    """The RoPE of a head's `config.json`, in the keys that all readers of heads know."""
    if rope.kind == "default":
        return {"rope_theta": rope.theta}
    scaling: dict[str, object] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind == "llama3":
        scaling["low_freq_factor"] = rope.low_freq_factor
        scaling["high_freq_factor"] = rope.high_freq_factor
        scaling["original_max_position_embeddings"] = rope.original_positions
    return {"rope_theta": rope.theta, "rope_scaling": scaling}


def boundaries_of(config: Mapping[str, Any]) -> tuple[int, ...]:
    """The taps of an exported head of either kind: layer outputs under `eagle_config`, or top-level boundaries."""
    key = "eagle_aux_hidden_state_layer_ids"
    nested = config.get("eagle_config")
    return tuple(config[key]) if nested is None else tuple(output + 1 for output in nested[key])

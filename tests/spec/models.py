"""Tiny random targets and heads on disk, written as the formats in the wild write them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

VOCABULARY = 64
HIDDEN = 32
LAYERS = 8
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 8
INTERMEDIATE = 48
POSITIONS = 256


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int, scale: float = 0.3) -> dict[str, Tensor]:
    """Far from an initial state: norms that are not 1, logits that are not flat."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        made[name] = 1 + 0.2 * noise if "norm" in name and name.endswith("weight") else noise * scale
    return made


def write_target(folder: Path, *, seed: int = 0, tied: bool = False, end_id: int | None = None, **sizes: int) -> Path:
    """A random Llama; `sizes` may override vocabulary, hidden and layers."""
    vocabulary, hidden, layers = (
        sizes.get("vocabulary", VOCABULARY),
        sizes.get("hidden", HIDDEN),
        sizes.get("layers", LAYERS),
    )
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    if not tied:
        shapes["lm_head.weight"] = (vocabulary, hidden)
    for layer in range(layers):
        shapes |= _layer_shapes(f"model.layers.{layer}", hidden, hidden)
        shapes[f"model.layers.{layer}.input_layernorm.weight"] = (hidden,)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": vocabulary,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
    }
    if end_id is not None:
        config["eos_token_id"] = end_id
    return write(folder, config, random_tensors(shapes, seed))


def head_tensors(
    *,
    seed: int = 1,
    draft_vocabulary: int = VOCABULARY,
    layers: int = 1,
    taps: int = 3,
    extra: dict[str, tuple[int, ...]] | None = None,
) -> dict[str, Tensor]:
    """A random head in canonical names (`layers.{i}`), without maps."""
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, taps * HIDDEN),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (draft_vocabulary, HIDDEN),
        "layers.0.hidden_norm.weight": (HIDDEN,),
    }
    for layer in range(layers):
        shapes |= _layer_shapes(f"layers.{layer}", HIDDEN, HIDDEN if layer else 2 * HIDDEN)
        shapes[f"layers.{layer}.input_layernorm.weight"] = (HIDDEN,)
    return random_tensors(shapes | (extra or {}), seed)


def head_config(*, draft_vocabulary: int = VOCABULARY, layers: int = 1, **changes: Any) -> dict[str, Any]:
    """Of a SafeAILab checkpoint; None removes a key."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY,
        "draft_vocab_size": draft_vocabulary,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    return {key: value for key, value in (config | changes).items() if value is not None}


def specforge_config(taps: tuple[int, ...] = (2, 4, 5), **changes: Any) -> dict[str, Any]:
    """The same head as SpecForge writes it: taps as layer outputs."""
    return head_config(**changes) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in taps], "use_aux_hidden_state": True},
    }


def speculators_config(taps: tuple[int, ...] = (2, 4, 5), **changes: Any) -> dict[str, Any]:
    """The same head as the speculators library writes it: taps as boundaries, sizes one level down."""
    layer = {key: value for key, value in head_config(rope_theta=5e5).items() if key != "architectures"}
    draft_vocabulary = layer.pop("draft_vocab_size")
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": draft_vocabulary,
        "eagle_aux_hidden_state_layer_ids": list(taps),
        "target_hidden_size": None,
        "transformer_layer_config": layer,
    } | changes


def peagle_tensors(*, layers: int = 2, draft_vocabulary: int = VOCABULARY, seed: int = 1) -> dict[str, Tensor]:
    """A random P-EAGLE head: an embedding of its own and the mask hidden state besides."""
    extra = {"mask_hidden": (1, 1, 3 * HIDDEN), "embed_tokens.weight": (VOCABULARY, HIDDEN)}
    return head_tensors(seed=seed, layers=layers, draft_vocabulary=draft_vocabulary, extra=extra)


def peagle_config(*, layers: int = 2, draft_vocabulary: int = VOCABULARY, **changes: Any) -> dict[str, Any]:
    """As vLLM reads it: taps as boundaries, at the top level."""
    own = {"ptd_token_id": VOCABULARY - 1, "eagle_aux_hidden_state_layer_ids": [2, 4, 5]}
    return head_config(layers=layers, draft_vocabulary=draft_vocabulary, **(own | changes))


def safeailab_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}


def draft_maps(draft_vocabulary: int, vocabulary: int = VOCABULARY, *, ordered: bool = True) -> dict[str, Tensor]:
    """d2t offsets and t2d of every vocabulary / draft_vocabulary-th id, or of shuffled ids."""
    ids = torch.arange(draft_vocabulary) * (vocabulary // draft_vocabulary) + vocabulary // draft_vocabulary - 1
    if not ordered:
        ids = ids[torch.randperm(draft_vocabulary, generator=torch.Generator().manual_seed(3))]
    members = torch.zeros(vocabulary, dtype=torch.bool)
    members[ids] = True
    return {"d2t": ids - torch.arange(draft_vocabulary), "t2d": members}


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def _layer_shapes(prefix: str, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.self_attn.q_proj.weight": (HEADS * HEAD_DIM, width),
        f"{prefix}.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, width),
        f"{prefix}.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, width),
        f"{prefix}.self_attn.o_proj.weight": (hidden, HEADS * HEAD_DIM),
        f"{prefix}.post_attention_layernorm.weight": (hidden,),
        f"{prefix}.mlp.gate_proj.weight": (INTERMEDIATE, hidden),
        f"{prefix}.mlp.up_proj.weight": (INTERMEDIATE, hidden),
        f"{prefix}.mlp.down_proj.weight": (hidden, INTERMEDIATE),
    }

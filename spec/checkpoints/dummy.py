"""Shapes of a head's tensors by its config.json, for `model.weights: dummy`, which draws them at random.

Called by `loader`. The head has no biases, no norms before `fc`, its own output layer and the target's embeddings.
"""

from collections.abc import Mapping
from typing import Any

from aerie.spec.checkpoints.formats import Shapes, head_numbers

_TAPS = 3


def head_shapes(config: Mapping[str, Any], *, target_hidden: int) -> Shapes:
    """Shapes by canonical name. A reduced draft vocabulary has a map of zeros: draft id i is target id i."""
    numbers = head_numbers(config)
    size, hidden, inner = numbers.size, numbers.size("hidden_size"), numbers.size("intermediate_size")
    heads, kv_heads, dim = numbers.attention(hidden)
    queries, keys = heads * dim, kv_heads * dim
    vocabulary = size("vocab_size")
    drafted = size("draft_vocab_size", vocabulary)
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, _tap_count(config) * size("target_hidden_size", target_hidden)),
        "norm.weight": (hidden,),
        "lm_head.weight": (drafted, hidden),
    }
    if drafted < vocabulary:
        shapes["d2t"] = (drafted,)
    for layer in range(size("num_hidden_layers", 1)):
        prefix, width = f"layers.{layer}", hidden if layer else 2 * hidden
        shapes |= {
            f"{prefix}.{norm}.weight": (hidden,)
            for norm in ("input_layernorm", "post_attention_layernorm", *(() if layer else ("hidden_norm",)))
        }
        shapes |= {
            f"{prefix}.self_attn.q_proj.weight": (queries, width),
            f"{prefix}.self_attn.k_proj.weight": (keys, width),
            f"{prefix}.self_attn.v_proj.weight": (keys, width),
            f"{prefix}.self_attn.o_proj.weight": (hidden, queries),
            f"{prefix}.mlp.gate_proj.weight": (inner, hidden),
            f"{prefix}.mlp.up_proj.weight": (inner, hidden),
            f"{prefix}.mlp.down_proj.weight": (hidden, inner),
        }
    return shapes


def _tap_count(config: Mapping[str, Any]) -> int:
    inner = config.get("eagle_config") or {}
    named = inner.get("eagle_aux_hidden_state_layer_ids") or config.get("eagle_aux_hidden_state_layer_ids")
    return len(named) if named else _TAPS

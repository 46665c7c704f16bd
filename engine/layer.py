"""One pre-norm transformer layer with merged projections; the target stacks it, and a draft head is built of the same
parts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from engine.attention import Attention, Planned
from engine.kv_pool import KVPool
from engine.norm import RmsNorm
from engine.rope import rotate


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """`qkv` stacks the rows of q, k and v, q and k in interleaved order (engine/rope.py); norms only where q and k
    have them.
    """

    qkv: Tensor
    qkv_bias: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    q_norm: RmsNorm | None
    k_norm: RmsNorm | None
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """SwiGLU; `gate_up` stacks the rows of gate and up."""

    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Pass:
    """What all layers of one forward pass share: where its tokens stand and who sees whom."""

    turns: Tensor
    """[tokens, 1, head_dim / 2] complex rotations."""
    slots: Tensor
    """[tokens] int64 pool slots to write."""
    planned: Planned
    attention: Attention
    pool: KVPool


def attend(x: Tensor, weights: AttentionWeights, layer: int, context: Pass) -> Tensor:
    """x [tokens, width of qkv's input], normed -> [tokens, hidden]; writes the tokens' keys and values."""
    heads, kv_heads, dim = weights.heads, weights.kv_heads, weights.head_dim
    merged = linear(x, weights.qkv, weights.qkv_bias).view(x.shape[0], heads + 2 * kv_heads, dim)
    turning = merged[:, : heads + kv_heads]
    if weights.q_norm is not None and weights.k_norm is not None:
        turning = torch.cat((weights.q_norm(turning[:, :heads]), weights.k_norm(turning[:, heads:])), 1)
    turned = rotate(turning, context.turns)
    context.pool.write(layer, context.slots, turned[:, heads:], merged[:, heads + kv_heads :])
    mixed = context.attention.run(context.planned, turned[:, :heads], context.pool, layer)
    return linear(mixed.reshape(x.shape[0], heads * dim), weights.output, weights.output_bias)


def mlp(x: Tensor, weights: MlpWeights) -> Tensor:
    """x [tokens, hidden], normed -> the same shape."""
    gate, up = linear(x, weights.gate_up, weights.gate_up_bias).chunk(2, -1)
    return linear(silu(gate).mul_(up), weights.down, weights.down_bias)

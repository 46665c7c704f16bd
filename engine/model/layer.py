"""One pre-norm transformer layer with merged projections. The target stacks it; a draft head uses the same parts."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import silu

from aerie.engine.attention import Attention, Planned
from aerie.engine.bindings import Kernels
from aerie.engine.model.norm import RmsNorm
from aerie.engine.model.projection import Projection
from aerie.engine.model.rope import rotate_
from aerie.engine.state.kv_pool import KVPool


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """`qkv` stacks the rows of q, k and v, with q and k in interleaved order (engine/model/rope.py). Norms are set only
    if the model normalizes q and k.
    """

    qkv: Projection
    """[(heads + 2 * kv_heads) * head_dim, width]"""
    output: Projection
    """[hidden, heads * head_dim]"""
    q_norm: RmsNorm | None
    k_norm: RmsNorm | None
    """[head_dim], as `q_norm`"""
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def bytes(self) -> int:
        norms = [norm for norm in (self.q_norm, self.k_norm) if norm is not None]
        return self.qkv.bytes + self.output.bytes + sum(norm.bytes for norm in norms)


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """SwiGLU; `gate_up` stacks the rows of gate and up."""

    gate_up: Projection
    """[2 * inner, hidden]"""
    down: Projection
    """[hidden, inner]"""
    inner: int

    @property
    def bytes(self) -> int:
        return self.gate_up.bytes + self.down.bytes


@dataclass(frozen=True, slots=True)
class Pass:
    """What all layers of one forward pass share: its tokens' rotations and slots, and their attention."""

    rotations: Tensor
    """[tokens, 1, head_dim / 2] complex rotations."""
    slots: Tensor
    """[tokens] int64 pool slots to write."""
    planned: Planned
    attention: Attention
    pool: KVPool
    kernels: Kernels


def attend(
    residual: Tensor, x: Tensor, norm: RmsNorm | None, weights: AttentionWeights, layer: int, context: Pass
) -> Tensor:
    """Adds attention over x [tokens, width of qkv's input] to `residual` [tokens, hidden] in place; writes the tokens'
    keys and values to the pool. Without `norm` x is normed already.
    """
    heads, kv_heads, dim = weights.heads, weights.kv_heads, weights.head_dim
    merged = weights.qkv(x, norm).view(-1, heads + 2 * kv_heads, dim)  # [tokens, heads of q, k and v, head_dim]
    if weights.q_norm is not None and weights.k_norm is not None:
        query, key = merged[:, :heads], merged[:, heads : heads + kv_heads]
        query.copy_(weights.q_norm(query))
        key.copy_(weights.k_norm(key))
    context.kernels[rotated](merged, heads, context.rotations, context.pool, layer, context.slots)
    mixed = context.attention.run(context.planned, merged[:, :heads], context.pool, layer)  # [tokens, heads, head_dim]
    return weights.output.add_to(residual, mixed.reshape(-1, heads * dim))


def mlp(residual: Tensor, norm: RmsNorm, weights: MlpWeights, kernels: Kernels) -> Tensor:
    """Adds the MLP of the normed `residual` [tokens, hidden] to it, in place."""
    return weights.down.add_to(residual, weights.gate_up.gated(residual, norm, kernels[gated]))


def rotated(merged: Tensor, heads: int, rotations: Tensor, pool: KVPool, layer: int, slots: Tensor) -> None:
    """merged [tokens, heads + 2 * kv_heads, head_dim], rotations [tokens, 1, head_dim / 2], slots [tokens]: rotates
    queries and keys in place and writes keys and values to the pool.
    """
    kv_heads = (merged.shape[1] - heads) // 2
    rotate_(merged, heads + kv_heads, rotations)
    pool.write(layer, slots, merged[:, heads:])


def gated(both: Tensor) -> Tensor:
    """both [tokens, 2 * inner], gate then up -> silu(gate) * up [tokens, inner]."""
    gate, up = both.chunk(2, -1)  # [tokens, inner] each
    return silu(gate).mul_(up)

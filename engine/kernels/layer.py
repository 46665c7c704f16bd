"""The small operations of a layer, each in one launch: norm, rotation with the write to the pool, and SwiGLU's product.

16-bit numbers are computed in fp32 and rounded once; the references also round in between.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.engine.state.kv_pool import KVPool

_BLOCK = 1024


def normed(x: Tensor, gain: Tensor, floor: Tensor) -> Tensor:
    """x / hypot(|x|, floor) * gain for x [tokens, size] or [tokens, heads, size], which may be a slice of a wider
    tensor.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    parts = x if x.ndim == 3 else x[:, None]
    tokens, each, size = parts.shape
    block = triton.next_power_of_2(size)
    norm_rows[(tokens * each,)](
        out, parts, gain, floor, parts.stride(0), each, size, block=block, num_warps=max(1, min(8, block // 512))
    )
    return out


@triton.jit
def norm_rows(out, x, gain, floor, stride, each, size, block: tl.constexpr):
    """Grid (tokens * heads); a token's heads lie side by side."""
    row, places = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    source = x + row // each * stride + row % each * size
    wide = tl.load(source + places, mask=places < size, other=0.0).to(tl.float32)
    least = tl.load(floor)
    shrink = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) + least * least)
    answer = wide * shrink * tl.load(gain + places, mask=places < size, other=0.0)
    tl.store(out + row * size + places, answer.to(out.dtype.element_ty), mask=places < size)


def rotated(merged: Tensor, heads: int, rotations: Tensor, pool: KVPool, layer: int, slots: Tensor) -> None:
    """merged [tokens, heads + 2 * kv_heads, head_dim]: rotates queries in place and keys into the pool, and copies
    values there.
    """
    tokens, every, dim = merged.shape
    keys = pool.keys[layer]
    rotate_heads[(tokens, every)](
        merged,
        keys,
        torch.view_as_real(rotations),
        slots,
        keys.stride(0),
        heads=heads,
        every=every,
        half=dim // 2,
        block=triton.next_power_of_2(dim // 2),
        num_warps=1,
    )


@triton.jit
def rotate_heads(
    merged,
    pool,
    rotations,
    slots,
    slot_stride,
    heads: tl.constexpr,
    every: tl.constexpr,
    half: tl.constexpr,
    block: tl.constexpr,
):
    """Grid (tokens, heads of all kinds). Rotated pairs lie side by side."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pairs = tl.arange(0, block)
    inside = pairs < half
    source = merged + (token * every + head) * 2 * half + 2 * pairs
    x, y = tl.load(source, mask=inside), tl.load(source + 1, mask=inside)
    if head < heads + (every - heads) // 2:
        wide_x, wide_y = x.to(tl.float32), y.to(tl.float32)
        rotation = rotations + token * 2 * half + 2 * pairs
        cos, sin = tl.load(rotation, mask=inside), tl.load(rotation + 1, mask=inside)
        x, y = (wide_x * cos - wide_y * sin).to(x.dtype), (wide_x * sin + wide_y * cos).to(y.dtype)
    target = source
    if head >= heads:
        target = pool + tl.load(slots + token) * slot_stride + (head - heads) * 2 * half + 2 * pairs
    tl.store(target, x, mask=inside)
    tl.store(target + 1, y, mask=inside)


def gated(both: Tensor) -> Tensor:
    """both [tokens, 2 * inner], gate then up -> silu(gate) * up [tokens, inner]."""
    tokens, inner = both.shape[0], both.shape[1] // 2
    out = torch.empty((tokens, inner), dtype=both.dtype, device=both.device)
    gate_rows[(tokens, triton.cdiv(inner, _BLOCK))](out, both, inner, block=_BLOCK)
    return out


@triton.jit
def gate_rows(out, both, inner, block: tl.constexpr):
    """Grid (tokens, blocks)."""
    token, places = tl.program_id(0).to(tl.int64), tl.program_id(1) * block + tl.arange(0, block)
    gate = tl.load(both + 2 * token * inner + places, mask=places < inner, other=0.0).to(tl.float32)
    up = tl.load(both + 2 * token * inner + inner + places, mask=places < inner, other=0.0).to(tl.float32)
    answer = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + token * inner + places, answer.to(out.dtype.element_ty), mask=places < inner)

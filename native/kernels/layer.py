"""The small operations of a layer, in C++: norm, rotation with the write to the pool, and SwiGLU's product.

For fp32 and bf16; the references run anything else. 16-bit numbers are computed in fp32 and rounded once; the
references also round in between. Calls pass addresses of contiguous tensors.
"""

import torch
from torch import Tensor

from aerie.engine.model import layer as references
from aerie.engine.model import norm
from aerie.engine.state.kv_pool import KVPool
from aerie.native.library import library
from aerie.native.numbers import LANES, TYPES


def normed(x: Tensor, gain: Tensor, floor: Tensor) -> Tensor:
    """x / hypot(|x|, floor) * gain for x [..., size]; a head's taps are parts of a wider matrix."""
    size = gain.shape[0]
    if x.dtype not in TYPES or size % LANES:
        return norm.normed(x, gain, floor)
    wide = x.float().contiguous()
    out = torch.empty_like(wide)
    library().normed(out.data_ptr(), wide.data_ptr(), gain.data_ptr(), floor.data_ptr(), x.numel() // size, size, size)
    return out.to(x.dtype)


def rotated(merged: Tensor, heads: int, rotations: Tensor, pool: KVPool, layer: int, slots: Tensor) -> None:
    """merged [tokens, heads + 2 * kv_heads, head_dim]: rotates queries and keys in place and writes keys and values to
    the pool.
    """
    tokens, every, dim = merged.shape
    if merged.dtype not in TYPES or dim % LANES or not merged.is_contiguous():
        references.rotated(merged, heads, rotations, pool, layer, slots)
        return
    library().rotated(
        merged.data_ptr(),
        rotations.data_ptr(),
        pool.slots(layer).data_ptr(),
        slots.data_ptr(),
        tokens,
        heads,
        (every - heads) // 2,
        dim,
        merged.dtype is torch.bfloat16,
    )


def gated(both: Tensor) -> Tensor:
    """both [tokens, 2 * inner], gate then up -> silu(gate) * up [tokens, inner]."""
    tokens, inner = both.shape[0], both.shape[1] // 2
    if both.dtype not in TYPES or inner % LANES:
        return references.gated(both)
    wide, out = both.float(), torch.empty(tokens, inner)
    library().gated(out.data_ptr(), wide.data_ptr(), tokens, inner)
    return out.to(both.dtype)

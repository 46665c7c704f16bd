"""The noise of engine/sampling/noise.py: the same hash, in 32-bit unsigned arithmetic; other kernels make it on the
fly.

Hashes equal the reference's bit for bit; logarithms may differ in the last place, as they do between a CPU and a GPU.
Near zero -log(1 - u) is a series, since 1 - u would round to 1 there.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
MOST = 22.875
"""No noise exceeds it: -log(-log(1 - u)) of the least u, 2^-33, is 22.8739."""


def gumbel(keys: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    count, width = keys.numel(), tokens.numel()
    noise = torch.empty((count, width), dtype=torch.float32, device=keys.device)
    write_noise[(count, triton.cdiv(width, _BLOCK))](noise, keys, positions, tokens, width, block=_BLOCK)
    return noise


@triton.jit
def write_noise(noise, keys, positions, tokens, width, block: tl.constexpr):
    """Grid (pairs of key and position, blocks of tokens)."""
    pair, places = tl.program_id(0).to(tl.int64), tl.program_id(1) * block + tl.arange(0, block)
    low, high = row_state(tl.load(keys + pair), tl.load(positions + pair).to(tl.int64))
    token = tl.load(tokens + places, mask=places < width, other=0)
    tl.store(noise + pair * width + places, noise_of(low, high, token), mask=places < width)


@triton.jit
def finalized(x):
    """murmur3's finalizer on uint32."""
    x = (x ^ (x >> 16)) * tl.full([], 0x85EBCA6B, tl.uint32)
    x = (x ^ (x >> 13)) * tl.full([], 0xC2B2AE35, tl.uint32)
    return x ^ (x >> 16)


@triton.jit
def row_state(key, position):
    """Two well-mixed halves for an int64 (key, position) pair."""
    golden = tl.full([], 0x9E3779B1, tl.uint32)
    low = finalized(key.to(tl.uint32) ^ finalized(position.to(tl.uint32) * golden + 1))
    high = finalized((key >> 32).to(tl.uint32) + low)
    return finalized(low ^ high), high >> 1


@triton.jit
def noise_of(low, high, tokens):
    """Standard Gumbel noise from a row's state, for tokens of any integer dtype."""
    golden = tl.full([], 0x9E3779B1, tl.uint32)
    hashed = finalized(finalized((tokens.to(tl.uint32) * golden) ^ low) + high)
    u = tl.minimum((hashed.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.9999999403953552)
    series = u * (1.0 + u * (0.5 + u * (0.3333333333 + u * 0.25)))
    return -tl.log(tl.where(u < 0.015625, series, -tl.log(1.0 - u)))

"""The noise of engine/noise.py inside kernels: the same hash, in 32-bit unsigned arithmetic.

Twin: `engine.noise.gumbel`. Hashes are equal bit for bit; logarithms may differ in the last place, as they do between a
CPU and a GPU. Near zero -log(1 - u) is a series, since 1 - u would round to 1 there.
"""

import triton
import triton.language as tl


@triton.jit
def finalized(x):
    """murmur3's finalizer of uint32."""
    x = (x ^ (x >> 16)) * tl.full([], 0x85EBCA6B, tl.uint32)
    x = (x ^ (x >> 13)) * tl.full([], 0xC2B2AE35, tl.uint32)
    return x ^ (x >> 16)


@triton.jit
def row_state(key, position):
    """Two halves, well mixed, of a (key, position) pair of int64."""
    golden = tl.full([], 0x9E3779B1, tl.uint32)
    low = finalized(key.to(tl.uint32) ^ finalized(position.to(tl.uint32) * golden + 1))
    high = finalized((key >> 32).to(tl.uint32) + low)
    return finalized(low ^ high), high >> 1


@triton.jit
def gumbel(low, high, tokens):
    """Standard Gumbel noise of a row's state at int32 tokens."""
    golden = tl.full([], 0x9E3779B1, tl.uint32)
    hashed = finalized(finalized((tokens.to(tl.uint32) * golden) ^ low) + high)
    u = tl.minimum((hashed.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.9999999403953552)
    series = u * (1.0 + u * (0.5 + u * (0.3333333333 + u * 0.25)))
    return -tl.log(tl.where(u < 0.015625, series, -tl.log(1.0 - u)))

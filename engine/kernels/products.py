"""x W^T for few tokens: a product that reads each weight once and does little else.

Libraries choose tiles for products with many rows. Here a program has all tokens, some outputs and a part of the width;
parts are added up in a second launch in their order, so that a result is the same in every run. What is fastest for a
matrix and a count of tokens is measured (`aerie probe gpu-bench --only products`).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_TOKENS = 64
_OUTPUTS, _WIDTH = 64, 128
"""Outputs and inputs of a tile."""
_PROGRAMS = 264
"""At least so many programs, two for each multiprocessor of an H200, unless the width has too few tiles."""


def multiply(x: Tensor, weight: Tensor, splits: int | None = None) -> Tensor:
    """x [tokens <= 64, in] in 16 bits, weight [out, in] row by row -> x W^T [tokens, out] in x's dtype.

    `splits`: parts of the width, each a program's; by default enough to fill the device.
    """
    tokens, width = x.shape
    outputs = weight.shape[0]
    assert tokens <= MOST_TOKENS, "more tokens are a library's"
    tiles = triton.cdiv(outputs, _OUTPUTS)
    most = triton.cdiv(width, _WIDTH)
    parts = min(splits or triton.cdiv(_PROGRAMS, tiles), most)
    each = triton.cdiv(most, parts)
    sums = torch.empty((parts, tokens, outputs), dtype=torch.float32, device=x.device)
    multiply_part[(tiles, parts)](
        sums,
        x,
        weight,
        tokens,
        width,
        outputs,
        each,
        block_tokens=max(16, triton.next_power_of_2(tokens)),
        block_outputs=_OUTPUTS,
        block_width=_WIDTH,
    )
    out = torch.empty((tokens, outputs), dtype=x.dtype, device=x.device)
    numbers = tokens * outputs
    add_parts[(triton.cdiv(numbers, 1024),)](out, sums, numbers, parts, block=1024)
    return out


@triton.jit
def multiply_part(
    sums,
    x,
    weight,
    tokens,
    width,
    outputs,
    each,
    block_tokens: tl.constexpr,
    block_outputs: tl.constexpr,
    block_width: tl.constexpr,
):
    """Grid (tiles of outputs, parts): `each` tiles of the width."""
    part = tl.program_id(1)
    token = tl.arange(0, block_tokens)
    output = tl.program_id(0) * block_outputs + tl.arange(0, block_outputs)
    total = tl.zeros([block_tokens, block_outputs], tl.float32)
    for tile in range(part * each, tl.minimum(part * each + each, tl.cdiv(width, block_width))):
        place = tile * block_width + tl.arange(0, block_width)
        inside = place < width
        left = tl.load(
            x + token[:, None] * width + place[None, :], mask=(token < tokens)[:, None] & inside[None, :], other=0.0
        )
        right = tl.load(
            weight + output.to(tl.int64)[None, :] * width + place[:, None],
            mask=(output < outputs)[None, :] & inside[:, None],
            other=0.0,
        )
        total = tl.dot(left, right, total)
    target = sums + (part * tokens + token[:, None]).to(tl.int64) * outputs + output[None, :]
    tl.store(target, total, mask=(token < tokens)[:, None] & (output < outputs)[None, :])


@triton.jit
def add_parts(out, sums, numbers, parts, block: tl.constexpr):
    """Grid (blocks of numbers)."""
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    total = tl.zeros([block], tl.float32)
    for part in range(parts):
        total += tl.load(sums + part * numbers + place, mask=place < numbers, other=0.0)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=place < numbers)

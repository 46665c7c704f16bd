"""x W^T for few tokens: a product that reads each weight once and does little else.

Up to four tokens are streamed.py's. Libraries choose tiles for products with many rows; here the weights are the left
side of the tensor cores' product, whose tiles are tall, and the tokens the right side, whose tiles may be narrow. A
program has all tokens, some outputs and a part of the width. Parts are added up in a second launch in their order, so
that a result is the same in every run; their number does not depend on the tokens. Which matrices it pays for is
measured (product_choice.py).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.engine.kernels.layer import gated
from aerie.engine.kernels.product_ways import MOST_TOKENS
from aerie.engine.kernels.streamed import MOST_STREAMED, stream
from aerie.engine.kernels.uses import Norm

_OUTPUTS, _WIDTH = 64, 128
"""Outputs and inputs of a tile."""
_PROGRAMS = 264
"""At least so many programs, two for each multiprocessor of an H200, unless the width has too few tiles."""
_BLOCK = 1024


def multiply(
    x: Tensor,
    weight: Tensor,
    *,
    norm: Norm | None = None,
    gate: bool = False,
    scales: Tensor | None = None,
    residual: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """x [tokens <= 64, in] in 16 bits, weight [out, in] row by row -> x W^T [tokens, out], in x's dtype or `dtype`.

    `norm` is applied to x before. With `gate` the weight is [2 * inner, in], gate then up, and the result is SwiGLU's
    product [tokens, inner]. With `scales` [out] the weights are 8-bit integers, each worth its output's scale. The
    result is added to `residual`, if given, in place.
    """
    assert x.shape[0] <= MOST_TOKENS, "more tokens are a library's"
    assert weight.is_contiguous() and (residual is None or residual.is_contiguous())
    if x.shape[0] <= MOST_STREAMED:
        return stream(x, weight, norm=norm, gated=gate, scales=scales, residual=residual, dtype=dtype)
    product = multiply_by_tiles(x if norm is None else norm(x), weight, scales=scales, residual=residual, dtype=dtype)
    return gated(product) if gate else product


def multiply_by_tiles(
    x: Tensor,
    weight: Tensor,
    *,
    scales: Tensor | None = None,
    residual: Tensor | None = None,
    dtype: torch.dtype | None = None,
    splits: int | None = None,
) -> Tensor:
    """As `multiply`. `splits`: parts of the width; by default enough to fill the device."""
    tokens, width = x.shape
    outputs = weight.shape[0]
    x = x.contiguous()
    tiles, most = triton.cdiv(outputs, _OUTPUTS), triton.cdiv(width, _WIDTH)
    each = triton.cdiv(most, min(splits or triton.cdiv(_PROGRAMS, tiles), most))
    parts = triton.cdiv(most, each)
    out = residual
    if out is None:
        out = torch.empty((tokens, outputs), dtype=dtype or x.dtype, device=x.device)
    sums = out if parts == 1 else torch.empty((parts, tokens, outputs), dtype=torch.float32, device=x.device)
    ending = {"scaled": scales is not None, "added": residual is not None}
    multiply_tiles[(tiles, parts)](
        sums,
        x,
        weight,
        x if scales is None else scales,
        tokens,
        width,
        outputs,
        each,
        whole=parts == 1,
        **ending,
        block_tokens=max(16, triton.next_power_of_2(tokens)),
        block_outputs=_OUTPUTS,
        block_width=_WIDTH,
        num_stages=4,
    )
    if parts > 1:
        grid = tokens, triton.cdiv(outputs, _BLOCK)
        add_parts[grid](out, sums, x if scales is None else scales, tokens, outputs, parts, **ending, block=_BLOCK)
    return out


@triton.jit(do_not_specialize=["tokens"])
def multiply_tiles(
    target,
    x,
    weight,
    scales,
    tokens,
    width,
    outputs,
    each,
    whole: tl.constexpr,
    scaled: tl.constexpr,
    added: tl.constexpr,
    block_tokens: tl.constexpr,
    block_outputs: tl.constexpr,
    block_width: tl.constexpr,
):
    """Grid (tiles of outputs, parts): `each` tiles of the width. `target` is the result if it is `whole`, else the sums
    of the parts [parts, tokens, outputs].
    """
    part, token = tl.program_id(1), tl.arange(0, block_tokens)
    output = tl.program_id(0) * block_outputs + tl.arange(0, block_outputs)
    rows = weight + output.to(tl.int64)[:, None] * width
    total = tl.zeros([block_outputs, block_tokens], tl.float32)
    for tile in range(part * each, tl.minimum(part * each + each, tl.cdiv(width, block_width))):
        place = tile * block_width + tl.arange(0, block_width)
        inside = place < width
        left = tl.load(rows + place[None, :], mask=(output < outputs)[:, None] & inside[None, :], other=0)
        right = tl.load(
            x + token[None, :] * width + place[:, None], mask=(token < tokens)[None, :] & inside[:, None], other=0.0
        )
        total = tl.dot(left.to(right.dtype), right, total)
    real = (output < outputs)[:, None] & (token < tokens)[None, :]
    if whole:
        own = target + token.to(tl.int64)[None, :] * outputs + output[:, None]
        _finish(own, total, scales + output[:, None], real, scaled, added)
    else:
        own = target + (part * tokens + token).to(tl.int64)[None, :] * outputs + output[:, None]
        tl.store(own, total, mask=real)


@triton.jit(do_not_specialize=["tokens"])
def add_parts(
    out, sums, scales, tokens, outputs, parts, scaled: tl.constexpr, added: tl.constexpr, block: tl.constexpr
):
    """Grid (tokens, blocks of outputs)."""
    token, output = tl.program_id(0).to(tl.int64), tl.program_id(1) * block + tl.arange(0, block)
    real = output < outputs
    total = tl.zeros([block], tl.float32)
    for part in range(parts):
        total += tl.load(sums + (part * tokens + token) * outputs + output, mask=real, other=0.0)
    _finish(out + token * outputs + output, total, scales + output, real, scaled, added)


@triton.jit
def _finish(out, total, scales, real, scaled: tl.constexpr, added: tl.constexpr):
    if scaled:
        total = total * tl.load(scales, mask=real, other=0.0)
    if added:
        total = total + tl.load(out, mask=real, other=0.0).to(tl.float32)
    tl.store(out, total.to(out.dtype.element_ty), mask=real)

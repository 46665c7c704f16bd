"""x W^T for one to four tokens, with what a layer does before and after it in the same launch: norm, SwiGLU, addition.

So few tokens need no tensor cores: weights stream through shared memory, several tiles ahead, and each is multiplied by
every token's number in fp32. The norm scales a sum after it, so nothing waits for it. A program has some outputs and
the whole width; nothing is added up between programs.
"""

# mypy: disable-error-code="assignment"
# Tuples of a Triton kernel grow.

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.engine.kernels.uses import Norm

MOST_STREAMED = 4
"""Tokens."""
_WIDTH = 256
"""Inputs of a tile."""


def stream(
    x: Tensor,
    weight: Tensor,
    *,
    norm: Norm | None = None,
    gated: bool = False,
    scales: Tensor | None = None,
    residual: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """x [tokens <= 4, in], weight [out, in] -> x W^T [tokens, out], in x's dtype or `dtype`.

    `norm` is applied to x before. With `gated` the weight is [2 * out, in], gate then up, and the result is
    silu(gate) * up. With `scales` [rows] the weights are 8-bit integers, each worth its row's scale. The result is
    added to `residual`, if given, in place.
    """
    tokens, width = x.shape
    outputs = weight.shape[0] // 2 if gated else weight.shape[0]
    block_tokens = triton.next_power_of_2(tokens)
    out = residual
    if out is None:
        out = torch.empty((tokens, outputs), dtype=dtype or x.dtype, device=x.device)
    block_outputs = 8 if gated and block_tokens == MOST_STREAMED else 16  # registers hold a sum for each token
    stream_rows[(triton.cdiv(outputs, block_outputs),)](
        out,
        x.contiguous(),
        weight,
        x if scales is None else scales,
        x if norm is None else norm.gain,
        x if norm is None else norm.floor,
        tokens,
        outputs,
        width,
        normed=norm is not None,
        gated=gated,
        scaled=scales is not None,
        added=residual is not None,
        even=width % _WIDTH == 0,
        block_tokens=block_tokens,
        block_outputs=block_outputs,
        block_width=_WIDTH,
        num_warps=4,
    )
    return out


@triton.jit(do_not_specialize=["tokens"])
def stream_rows(
    out,
    x,
    weight,
    scales,
    gain,
    floor,
    tokens,
    outputs,
    width,
    normed: tl.constexpr,
    gated: tl.constexpr,
    scaled: tl.constexpr,
    added: tl.constexpr,
    even: tl.constexpr,
    block_tokens: tl.constexpr,
    block_outputs: tl.constexpr,
    block_width: tl.constexpr,
):
    """Grid (blocks of outputs). `even`: the width is a multiple of the block's."""
    output = tl.program_id(0) * block_outputs + tl.arange(0, block_outputs)
    real, place = output < outputs, tl.arange(0, block_width)
    rows = weight + output.to(tl.int64)[:, None] * width + place[None, :]
    ups = rows + outputs.to(tl.int64) * width
    totals, others, squares = (), (), ()
    for _ in tl.static_range(block_tokens):
        totals = totals + (tl.zeros([block_outputs, block_width], tl.float32),)
        others = others + (tl.zeros([block_outputs, block_width], tl.float32),) if gated else others
        squares = squares + (tl.zeros([block_width], tl.float32),) if normed else squares
    for start in tl.range(0, width, block_width, num_stages=4):
        inside = (start + place < width) | even
        held = real[:, None] if even else real[:, None] & inside[None, :]
        left = tl.load(rows + start, mask=held, other=0).to(tl.float32)
        up = left
        if gated:
            up = tl.load(ups + start, mask=held, other=0).to(tl.float32)
        more = 1.0
        if normed:
            more = tl.load(gain + start + place, mask=inside, other=0.0)
        rights = _read(x + start + place, inside, tokens, width, block_tokens)
        if normed:
            squares = _add_squares(squares, rights, block_tokens)
        totals = _add_products(totals, left, rights, more, normed, block_tokens)
        if gated:
            others = _add_products(others, up, rights, more, normed, block_tokens)
    for token in tl.static_range(block_tokens):
        shrink = 1.0
        if normed:
            least = tl.load(floor)
            shrink = 1.0 / tl.sqrt(tl.sum(squares[token], 0) + least * least)
        total = _finished(totals[token], shrink, scales + output, real, scaled)
        if gated:
            other = _finished(others[token], shrink, scales + outputs + output, real, scaled)
            total = total / (1.0 + tl.exp(-total)) * other
        target = out + token * outputs.to(tl.int64) + output
        mine = real & (token < tokens)
        if added:
            total = total + tl.load(target, mask=mine, other=0.0).to(tl.float32)
        tl.store(target, total.to(out.dtype.element_ty), mask=mine)


@triton.jit
def _finished(total, shrink, scales, real, scaled: tl.constexpr):
    """[outputs]: the sum over the width, with the norm's scale and the weights'."""
    whole = tl.sum(total, 1) * shrink
    return whole * tl.load(scales, mask=real, other=0.0) if scaled else whole


@triton.jit
def _read(x, inside, tokens, width, block_tokens: tl.constexpr):
    """Each token's numbers at these places, in fp32; tokens past the last are zeros."""
    rights = ()
    for token in tl.static_range(block_tokens):
        right = tl.load(x + token * width.to(tl.int64), mask=inside & (token < tokens), other=0.0)
        rights = rights + (right.to(tl.float32),)
    return rights


@triton.jit
def _add_squares(squares, rights, block_tokens: tl.constexpr):
    added = ()
    for token in tl.static_range(block_tokens):
        added = added + (squares[token] + rights[token] * rights[token],)
    return added


@triton.jit
def _add_products(totals, left, rights, more, normed: tl.constexpr, block_tokens: tl.constexpr):
    added = ()
    for token in tl.static_range(block_tokens):
        right = rights[token] * more if normed else rights[token]
        added = added + (totals[token] + left * right[None, :],)
    return added

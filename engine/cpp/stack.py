"""A stack of layers in one call (stack.cpp): between two products of a small model, a call from Python costs as much as
the products.
"""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from engine import stack as twins
from engine.attention.cpp import addresses_of
from engine.cpp.library import library
from engine.cpp.numbers import LANES, TYPES
from engine.layer import Pass
from engine.norm import RmsNorm
from engine.stack import Layer, Stack


class Norm(ctypes.Structure):
    _fields_ = (("gain", ctypes.c_void_p), ("floor", ctypes.c_void_p))


class Matrix(ctypes.Structure):
    _fields_ = (
        ("panels", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("outputs", ctypes.c_long),
        ("inputs", ctypes.c_long),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, Norm) for name in ("embedding", "input", "query", "key", "post")),
        *((name, Matrix) for name in ("qkv", "output", "gate_up", "down")),
    )


@dataclass(frozen=True, slots=True)
class Held:
    """A stack as kernels read it."""

    layers: "ctypes.Array[_Layer] | None"
    """None where it cannot."""
    most: int
    """Tokens up to which all matrices are read in panels."""


def through(
    stack: Stack, x: Tensor, context: Pass, *, embedded: Tensor | None = None, tapped: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor | None]:
    held = layers_of(stack)
    tokens, hidden = x.shape
    planned = addresses_of(context.planned)
    if held.layers is None or tokens > held.most or planned is None or x.dtype not in TYPES:
        return twins.through.twin(stack, x, context, embedded=embedded, tapped=tapped)
    addresses, rows, page_size = planned
    first, pool = stack.layers[0].attention, context.pool.slots(0)
    boundaries = sorted(set(tapped))
    stream, beside = x.float(), None if embedded is None else embedded.float()
    taps = torch.empty(tokens, len(boundaries) * hidden)
    library().passed(
        stream.data_ptr(),
        taps.data_ptr(),
        None if beside is None else beside.data_ptr(),
        held.layers,
        (ctypes.c_int64 * len(boundaries))(*boundaries),
        context.turns.data_ptr(),
        context.slots.data_ptr(),
        pool.data_ptr(),
        *addresses,
        len(stack.layers),
        len(boundaries),
        tokens,
        rows,
        hidden,
        first.heads,
        first.kv_heads,
        first.head_dim,
        page_size,
        pool.numel() * pool.element_size(),
        stack.normed_residual,
        pool.dtype is torch.bfloat16,
    )
    return stream.to(x.dtype), taps.to(x.dtype) if tapped else None


def layers_of(stack: Stack) -> Held:
    """Made at the first call, when nothing of the stack will change any more."""
    if stack.held is None:
        stack.held = _made(stack)
    held: Held = stack.held
    return held


def _made(stack: Stack) -> Held:
    layers = [_layer(layer) for layer in stack.layers]
    known = [layer for layer in layers if layer is not None]
    if len(known) < len(layers) or not known:
        return Held(None, 0)
    return Held((_Layer * len(known))(*known), min(matrix.few for matrix in stack.matrices))


def _layer(layer: Layer) -> _Layer | None:
    attention, hidden = layer.attention, layer.input_norm.gain.numel()
    sizes = (hidden, attention.head_dim, layer.mlp.inner)
    matrices = [matrix.addresses(1) for matrix in layer.matrices]
    if any(size % LANES for size in sizes) or None in matrices:
        return None
    mixed = attention.heads * attention.head_dim
    shapes = (
        (mixed + 2 * attention.kv_heads * attention.head_dim, hidden * (1 if layer.embedding_norm is None else 2)),
        (hidden, mixed),
        (2 * layer.mlp.inner, hidden),
        (hidden, layer.mlp.inner),
    )
    norms = (layer.embedding_norm, layer.input_norm, attention.q_norm, attention.k_norm, layer.post_norm)
    return _Layer(
        *(norm_at(norm) for norm in norms),
        *(Matrix(*found, *shape) for found, shape in zip(matrices, shapes, strict=True) if found is not None),
    )


def norm_at(norm: RmsNorm | None) -> Norm:
    """Where a kernel finds it."""
    return Norm() if norm is None else Norm(norm.gain.data_ptr(), norm.floor.data_ptr())

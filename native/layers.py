"""Layers as kernels read them (src/model.h): the addresses of their weights, looked up once."""

import ctypes
from dataclasses import dataclass

from aerie.engine.model.norm import RmsNorm
from aerie.engine.model.stack import Layer, Stack
from aerie.native.numbers import LANES
from aerie.native.products import addresses_of


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


class LayerStructure(ctypes.Structure):
    _fields_ = (
        *((name, Norm) for name in ("embedding", "input", "query", "key", "post")),
        *((name, Matrix) for name in ("qkv", "output", "gate_up", "down")),
    )


@dataclass(frozen=True, slots=True)
class NativeLayers:
    """A stack as kernels read it."""

    layers: "ctypes.Array[LayerStructure]"
    most: int
    """Up to this many tokens, all matrices are read in panels."""


def native_layers(stack: Stack) -> NativeLayers | None:
    """None if the kernels cannot run it."""
    layers = [_layer(layer) for layer in stack.layers]
    known = [layer for layer in layers if layer is not None]
    if len(known) < len(layers) or not known:
        return None
    return NativeLayers((LayerStructure * len(known))(*known), min(matrix.few for matrix in stack.matrices))


def _layer(layer: Layer) -> LayerStructure | None:
    attention, hidden = layer.attention, layer.input_norm.gain.numel()
    sizes = (hidden, attention.head_dim, layer.mlp.inner)
    matrices = [addresses_of(matrix, 1) for matrix in layer.matrices]
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
    return LayerStructure(
        *(norm_at(norm) for norm in norms),
        *(Matrix(*found, *shape) for found, shape in zip(matrices, shapes, strict=True) if found is not None),
    )


def norm_at(norm: RmsNorm | None) -> Norm:
    """The norm as a kernel reads it."""
    return Norm() if norm is None else Norm(norm.gain.data_ptr(), norm.floor.data_ptr())

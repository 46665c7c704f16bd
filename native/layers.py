"""Layers as kernels read them (src/model.h): the addresses of their weights, looked up once."""

import ctypes
from dataclasses import dataclass

from aerie.engine.model.norm import RmsNorm
from aerie.engine.model.stack import Layer, Stack
from aerie.native.numbers import LANES
from aerie.native.products import Matrix, matrix_of


class Norm(ctypes.Structure):
    _fields_ = (("gain", ctypes.c_void_p), ("floor", ctypes.c_void_p))


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
    found = [matrix_of(matrix, 1) for matrix in layer.matrices]
    matrices = [matrix for matrix in found if matrix is not None]
    if any(size % LANES for size in sizes) or len(matrices) < len(found):
        return None
    norms = (layer.embedding_norm, layer.input_norm, attention.q_norm, attention.k_norm, layer.post_norm)
    return LayerStructure(
        *map(norm_at, norms),
        *matrices,
    )


def norm_at(norm: RmsNorm | None) -> Norm:
    """The norm as a kernel reads it."""
    return Norm() if norm is None else Norm(norm.gain.data_ptr(), norm.floor.data_ptr())

"""Models, tables and the FutureMap as kernels of whole steps read them (src/model.h): addresses, looked up once, since
nothing in them moves while it is in use.
"""

import ctypes
from ctypes import c_bool, c_long, c_void_p
from dataclasses import dataclass

import torch

from aerie.engine.model.body import Body
from aerie.engine.state.future_map import FutureMap
from aerie.engine.state.row_tables import RowTables
from aerie.native.kernels.attention import CppAttention
from aerie.native.layers import NativeLayers, Norm, native_layers, norm_at
from aerie.native.numbers import LANES, TYPES
from aerie.native.products import Matrix, matrix_of
from aerie.native.structs.columns import native_columns


class Model(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("layers", "rotations", "embeddings", "pool")),
        ("norm", Norm),
        ("output", Matrix),
        *((n, c_long) for n in ("count", "hidden", "heads", "kv_heads", "dim", "page_size", "layer_bytes")),
        *((name, c_bool) for name in ("normed_residual", "halves")),
    )


class Tables(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("pages", "noise_keys", "sampling", "limits", "min_lengths", "stop_ids")),
        *((name, c_void_p) for name in ("edit_slots", "counts", "biases")),
        *((name, c_long) for name in ("per_row", "stops", "no_slot")),
    )


class Futures(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("tokens", "lengths", "done", "seeds")),
        *((name, c_long) for name in ("per_generation", "seed_bytes")),
    )


@dataclass(frozen=True, slots=True)
class NativeBody:
    """A body as kernels read it."""

    model: Model
    most: int
    """The most tokens that one pass holds."""
    layers: NativeLayers
    """The layers that `model` points to."""


def native_body(body: Body) -> NativeBody | None:
    """None if the kernels cannot run it."""
    layers, slots, output = native_layers(body.stack), body.pool.slots(0), matrix_of(body.output, 1)
    hidden = body.output.shape[1]
    known = slots.dtype in TYPES and body.embeddings.dtype == slots.dtype and isinstance(body.attention, CppAttention)
    if layers is None or output is None or not known or hidden % LANES:
        return None
    first = body.stack.layers[0].attention
    model = Model(
        ctypes.addressof(layers.layers),
        body.rotations.data_ptr(),
        body.embeddings.data_ptr(),
        slots.data_ptr(),
        norm_at(body.norm),
        output,
        len(body.stack.layers),
        hidden,
        first.heads,
        first.kv_heads,
        first.head_dim,
        body.pool.page_size,
        slots.numel() * slots.element_size(),
        body.stack.normed_residual,
        slots.dtype is torch.bfloat16,
    )
    return NativeBody(model, min(layers.most, body.output.few), layers)


def native_tables(tables: RowTables) -> Tables:
    columns = native_columns(tables)
    made = Tables(
        tables.pages.data_ptr(),
        tables.noise_keys.data_ptr(),
        ctypes.addressof(columns),
        tables.limits.data_ptr(),
        tables.min_lengths.data_ptr(),
        tables.stop_ids.data_ptr(),
        tables.edits.slots.data_ptr(),
        tables.edits.counts.data_ptr(),
        tables.edits.biases.data_ptr(),
        tables.pages.shape[1],
        tables.stop_ids.shape[1],
        tables.edits.dummy,
    )
    made.kept = columns
    return made


def native_futures(futures: FutureMap) -> Futures:
    parts = (futures.bonus, futures.lengths, futures.done, futures.seeds)
    size = futures.seeds.shape[2] * futures.seeds.element_size()
    return Futures(*(part.data_ptr() for part in parts), futures.bonus.shape[1], size)

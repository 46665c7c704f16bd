"""Models, tables and the FutureMap as kernels of whole steps read them (model.h): addresses, found once.

Whoever they belong to keeps them, since nothing in them moves while it serves.
"""

import ctypes
from ctypes import c_bool, c_long, c_void_p
from dataclasses import dataclass

import torch

from engine.attention.cpp import CppAttention
from engine.body import Body
from engine.cpp.numbers import LANES, TYPES
from engine.cpp.stack import Matrix, Norm, layers_of, norm_at
from engine.future_map import FutureMap
from engine.row_tables import RowTables


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
        *((name, c_void_p) for name in ("pages", "noise_keys", "temperatures", "min_ps", "top_ps")),
        *((name, c_void_p) for name in ("top_ks", "limits", "min_lengths", "stop_ids")),
        *((name, c_long) for name in ("per_row", "stops")),
    )


class Futures(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("tokens", "lengths", "done", "seeds")),
        *((name, c_long) for name in ("per_turn", "seed_bytes")),
    )


@dataclass(frozen=True, slots=True)
class Held:
    """A body as kernels read it."""

    model: Model
    most: int
    """Tokens that they pass at once."""


def held_of(body: Body) -> Held | None:
    """None where the kernels cannot walk through it."""
    if body.held is None:
        body.held = _made(body) or ()
    return body.held or None


def _made(body: Body) -> Held | None:
    layers, slots, panels = layers_of(body.stack), body.pool.slots(0), body.output.addresses(1)
    vocabulary, hidden = body.output.shape
    known = slots.dtype in TYPES and body.embeddings.dtype == slots.dtype and isinstance(body.attention, CppAttention)
    if layers.layers is None or panels is None or not known or hidden % LANES:
        return None
    first = body.stack.layers[0].attention
    model = Model(
        ctypes.addressof(layers.layers),
        body.rotations.data_ptr(),
        body.embeddings.data_ptr(),
        slots.data_ptr(),
        norm_at(body.norm),
        Matrix(*panels, vocabulary, hidden),
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
    return Held(model, min(layers.most, body.output.few))


def tables_of(tables: RowTables) -> Tables:
    if tables.held is None:
        given = (tables.pages, tables.noise_keys, tables.temperatures, tables.min_ps, tables.top_ps)
        parts = (*given, tables.top_ks, tables.limits, tables.min_lengths, tables.stop_ids)
        tables.held = Tables(*(part.data_ptr() for part in parts), tables.pages.shape[1], tables.stop_ids.shape[1])
    held: Tables = tables.held
    return held


def futures_of(futures: FutureMap) -> Futures:
    if futures.held is None:
        parts = (futures.bonus, futures.lengths, futures.done, futures.seeds)
        size = futures.seeds.shape[2] * futures.seeds.element_size()
        futures.held = Futures(*(part.data_ptr() for part in parts), futures.bonus.shape[1], size)
    held: Futures = futures.held
    return held

"""A draft head as kernels read it (engine/cpp/head.h)."""

import ctypes
from ctypes import c_bool, c_int64, c_long, c_void_p
from dataclasses import dataclass

from engine.cpp.model import Held, Model, held_of
from engine.cpp.stack import Matrix, Norm, norm_at
from spec.head import Head


class _Head(ctypes.Structure):
    _fields_ = (
        ("body", Model),
        ("mapping", c_void_p),
        ("fuse", Matrix),
        ("pre_norms", c_void_p),
        ("parts", c_long),
        ("norm_output", c_bool),
    )


@dataclass(frozen=True, slots=True)
class HeldHead:
    struct: _Head
    body: Held
    pre_norms: "ctypes.Array[Norm]"
    taps: "ctypes.Array[c_int64]"


def held_head(head: Head) -> HeldHead | None:
    """None where the kernels cannot walk through it."""
    if type(head) is not Head:
        return None
    if head.held is None:
        head.held = _made(head) or ()
    return head.held or None


def _made(head: Head) -> HeldHead | None:
    weights, body = head.weights, held_of(head.body)
    fuse, mapping = weights.fc.addresses(1), weights.draft_to_target
    if body is None or fuse is None:
        return None
    norms = (Norm * len(weights.pre_norms))(*map(norm_at, weights.pre_norms))
    struct = _Head(
        body.model,
        None if mapping is None else mapping.data_ptr(),
        Matrix(*fuse, *weights.fc.shape),
        ctypes.addressof(norms),
        len(norms),
        head.config.norm_output,
    )
    return HeldHead(struct, body, norms, (c_int64 * len(head.config.taps))(*head.config.taps))

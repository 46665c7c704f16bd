"""A draft head as kernels read it (src/head.h)."""

import ctypes
from ctypes import c_bool, c_int64, c_long, c_void_p
from dataclasses import dataclass

from aerie.native.layers import Norm, norm_at
from aerie.native.products import Matrix, matrix_of
from aerie.native.structs.model import Model, NativeBody, native_body
from aerie.spec.drafters.drafter import Drafter
from aerie.spec.drafters.head_drafter import HeadDrafter
from aerie.spec.heads.head import Head


class HeadStructure(ctypes.Structure):
    _fields_ = (
        ("body", Model),
        ("mapping", c_void_p),
        ("fuse", Matrix),
        ("pre_norms", c_void_p),
        ("parts", c_long),
        ("norm_output", c_bool),
    )


@dataclass(frozen=True, slots=True)
class NativeHead:
    struct: HeadStructure
    body: NativeBody
    pre_norms: "ctypes.Array[Norm]"
    taps: "ctypes.Array[c_int64]"
    draft_vocabulary: int


def native_head(drafter: Drafter) -> NativeHead | None:
    """The head with which a drafter is extended; None if it has none that the kernels can run."""
    head = drafter.head if isinstance(drafter, HeadDrafter) else None
    if type(head) is not Head:
        return None
    weights, body = head.weights, native_body(head.body)
    fuse, mapping = matrix_of(weights.fc, 1), weights.draft_to_target
    if body is None or fuse is None:
        return None
    norms = (Norm * len(weights.pre_norms))(*map(norm_at, weights.pre_norms))
    struct = HeadStructure(
        body.model,
        None if mapping is None else mapping.data_ptr(),
        fuse,
        ctypes.addressof(norms),
        len(norms),
        head.config.norm_output,
    )
    config = head.config
    return NativeHead(struct, body, norms, (c_int64 * len(config.taps))(*config.taps), config.draft_vocabulary)

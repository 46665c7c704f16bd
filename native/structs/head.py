"""A draft head as kernels read it (src/head.h)."""

import ctypes
from ctypes import c_bool, c_int64, c_long, c_void_p
from dataclasses import dataclass

from aerie.native.layers import Matrix, Norm, norm_at
from aerie.native.products import addresses_of
from aerie.native.structs.model import Model, NativeBody, native_body
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


def native_head(head: Head) -> NativeHead | None:
    """None if the kernels cannot run it."""
    if type(head) is not Head:
        return None
    weights, body = head.weights, native_body(head.body)
    fuse, mapping = addresses_of(weights.fc, 1), weights.draft_to_target
    if body is None or fuse is None:
        return None
    norms = (Norm * len(weights.pre_norms))(*map(norm_at, weights.pre_norms))
    struct = HeadStructure(
        body.model,
        None if mapping is None else mapping.data_ptr(),
        Matrix(*fuse, *weights.fc.shape),
        ctypes.addressof(norms),
        len(norms),
        head.config.norm_output,
    )
    return NativeHead(struct, body, norms, (c_int64 * len(head.config.taps))(*head.config.taps))

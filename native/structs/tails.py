"""Tails of resting rows as kernels read them (src/plans.h)."""

import ctypes
from ctypes import c_char_p, c_long, c_void_p

from aerie.contracts.step import Bools
from aerie.native.structs.head import NativeHead
from aerie.spec.round.tails import Tails


class TailsStructure(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("taps", "tokens", "tapped")),
        ("resting", c_char_p),
        *((name, c_long) for name in ("size", "wide", "boundaries")),
    )


def tails_of(tails: Tails, head: NativeHead, resting: Bools) -> TailsStructure:
    """Valid while `tails` and `head` are."""
    return TailsStructure(
        tails.taps.data_ptr(),
        tails.tokens.data_ptr(),
        ctypes.addressof(head.taps),
        resting.tobytes(),
        tails.size,
        tails.taps.shape[2],
        len(head.taps),
    )

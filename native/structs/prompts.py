"""A step of prompt chunks as kernels read it (src/prefill.cpp)."""

import ctypes
from ctypes import c_char_p, c_int64, c_long, c_void_p

from aerie.contracts.step import PrefillWork


class Prompts(ctypes.Structure):
    _fields_ = (
        *((name, c_char_p) for name in ("tokens", "starts", "counts", "next", "last")),
        ("tapped", c_void_p),
        ("boundaries", c_long),
    )


def prompts_of(work: PrefillWork, taps: "ctypes.Array[c_int64] | None") -> Prompts:
    """The inputs of the layers `taps` are kept for the head."""
    return Prompts(
        work.token_ids.tobytes(),
        work.starts.tobytes(),
        work.counts.tobytes(),
        work.next_ids.tobytes(),
        work.is_last.tobytes(),
        None if taps is None else ctypes.addressof(taps),
        0 if taps is None else len(taps),
    )

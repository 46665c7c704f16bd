"""Plans, outputs and capacity as msgpack frames between a lane and its process: dataclasses, with arrays as raw bytes.
A frame's first byte gives its kind.
"""

import struct
from typing import Any

import msgspec
import numpy as np
from msgspec.msgpack import Decoder, Encoder, Ext

from aerie.contracts.errors import AerieError, ConfigError, EngineDead
from aerie.contracts.grammar import Grammar, Prepared
from aerie.contracts.step import Capacity, StepOutput, StepPlan

_ARRAY = 1
_DTYPES = tuple(np.dtype(name) for name in ("<i4", "<i8", "<f4", "|b1"))
_HEADS = tuple(struct.Struct(f"<BB{dims}i") for dims in range(4))
"""By the number of dimensions: the code of an array's type, that number, and the shape."""


class Failure(msgspec.Struct):
    """Why a lane's process failed, for the other side to raise."""

    message: str
    param: str | None
    config: bool

    def error(self) -> AerieError:
        if self.config:
            return ConfigError(self.message, param=self.param)
        return EngineDead(f"the lane failed: {self.message}")


class Prepare(msgspec.Struct, frozen=True):
    """A request's grammar, to be built beside the steps; without one, what was built for it is freed."""

    request: int
    grammar: Grammar | None


_KINDS = (StepPlan, StepOutput, Capacity, Failure, Prepare, Prepared)


def encode(value: Any) -> bytes:
    """value: one of the kinds of frames."""
    return bytes((_KINDS.index(type(value)),)) + _ENCODER.encode(value)


def decode(frame: bytes) -> Any:
    """The caller owns the decoded arrays."""
    return _DECODERS[frame[0]].decode(memoryview(frame)[1:])


def encode_error(error: AerieError) -> bytes:
    return encode(Failure(error.message, error.param, isinstance(error, ConfigError)))


def _array(value: Any) -> Ext:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"a frame holds no {type(value).__name__}")
    shape = value.shape
    return Ext(_ARRAY, _HEADS[len(shape)].pack(_DTYPES.index(value.dtype), len(shape), *shape) + value.tobytes())


def _from_ext(kind: int, body: memoryview) -> np.ndarray:
    assert kind == _ARRAY, f"unknown extension {kind}"
    head = _HEADS[body[1]]
    code, _, *shape = head.unpack_from(body)
    return np.ndarray(shape, _DTYPES[code], bytearray(body[head.size :]))


def _kept(kind: type, value: Any) -> Any:
    """Passes arrays through: they are decoded already."""
    return value


_ENCODER = Encoder(enc_hook=_array)
_DECODERS = tuple(Decoder(kind, ext_hook=_from_ext, dec_hook=_kept) for kind in _KINDS)

"""Plans, outputs and capacity as msgpack frames between a lane and its process: dataclasses by name, arrays as raw
bytes.
"""

from dataclasses import fields, is_dataclass
from typing import Any

import msgspec
import numpy as np

from contracts import step
from contracts.errors import AerieError, ConfigError

_ARRAY = 1
_DTYPES = ("<i4", "<i8", "<f4", "|b1")
_TYPES = {
    kind.__name__: kind
    for kind in (
        step.StepPlan,
        step.PrefillWork,
        step.DecodeWork,
        step.RowStarts,
        step.PageUpdates,
        step.StepOutput,
        step.Logprobs,
        step.DraftedTrees,
        step.Capacity,
    )
}


def encode(value: Any) -> bytes:
    """A dataclass of contracts.step, or plain data."""
    return msgspec.msgpack.encode(_plain(value), enc_hook=_array)


def decode(frame: bytes) -> Any:
    return _typed(msgspec.msgpack.decode(frame, ext_hook=_from_ext))


def encode_error(error: AerieError) -> bytes:
    return encode({"error": error.message, "config": isinstance(error, ConfigError), "param": error.param})


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__, "fields": [_plain(getattr(value, f.name)) for f in fields(value)]}
    return value


def _typed(value: Any) -> Any:
    if isinstance(value, dict) and value.get("type") in _TYPES:
        made = _TYPES[value["type"]](*[_typed(item) for item in value["fields"]])
        return _restored(made)
    return value


def _restored(made: Any) -> Any:
    """Types that msgpack does not tell apart from its own."""
    if isinstance(made, step.StepPlan):
        object.__setattr__(made, "kind", step.StepKind(made.kind))
    if isinstance(made, step.Capacity):
        object.__setattr__(made, "end_ids", tuple(made.end_ids))
    return made


def _array(value: Any) -> msgspec.msgpack.Ext:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"a frame holds no {type(value).__name__}")
    head = bytes([_DTYPES.index(value.dtype.str), value.ndim]) + np.array(value.shape, np.int32).tobytes()
    return msgspec.msgpack.Ext(_ARRAY, head + value.tobytes())


def _from_ext(code: int, body: memoryview) -> np.ndarray:
    assert code == _ARRAY, f"unknown extension {code}"
    ndim = body[1]
    data = 2 + 4 * ndim
    shape = np.frombuffer(body[2:data], np.int32)
    return np.frombuffer(body[data:], _DTYPES[body[0]]).reshape(shape).copy()

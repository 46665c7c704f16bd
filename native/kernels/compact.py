"""Compaction in C++ (native/src/pool.cpp): one call, which moves only the slots that change place."""

from torch import Tensor

from aerie.engine.step.state import DeviceState
from aerie.native.library import library


def compact(state: DeviceState, owners: Tensor, lengths: Tensor, path: Tensor) -> None:
    pool, tables = state.target.pool, state.tables
    rows, width = path.shape
    keys = pool.keys  # a slot's values lie right after its keys
    number = keys.element_size()
    library().moved(
        keys.data_ptr(),
        path.data_ptr(),
        owners.data_ptr(),
        lengths.data_ptr(),
        tables.pages.data_ptr(),
        rows,
        width,
        tables.pages.shape[1],
        tables.page_size,
        keys.shape[0],
        keys.stride(0) * number,
        keys.stride(1) * number,
    )

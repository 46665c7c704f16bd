"""Edits of logits in C++ (src/edits.cpp), which passes once over the vocabulary of each row that asks for them."""

import ctypes
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from aerie.engine.sampling import edits as references
from aerie.engine.state.row_tables import RowTables
from aerie.native.library import library
from aerie.native.structs.model import Tables, native_tables

_READ: WeakKeyDictionary[RowTables, Tables] = WeakKeyDictionary()
"""Tables as the kernel reads them."""


def edit(logits: Tensor, rows: Tensor, tables: RowTables, path: Tensor | None) -> Tensor:
    if logits.dtype is not torch.float32:
        return references.edit(logits, rows, tables, path)
    read = _READ.get(tables)
    if read is None:
        read = _READ[tables] = native_tables(tables)
    logits, rows = logits.contiguous(), rows.contiguous()
    path = None if path is None else path.contiguous()
    out = torch.empty_like(logits)
    library().edited(
        out.data_ptr(),
        logits.data_ptr(),
        rows.data_ptr(),
        None if path is None else path.data_ptr(),
        *logits.shape,
        0 if path is None else path.shape[1],
        ctypes.addressof(read),
    )
    return out

"""Edits of logits in C++ (src/edits.cpp), which passes once over the vocabulary of each row that asks for them."""

import torch
from torch import Tensor

from aerie.engine.sampling import edits as references
from aerie.engine.state.row_tables import RowTables
from aerie.native.library import library


def edit(logits: Tensor, rows: Tensor, tables: RowTables, path: Tensor | None) -> Tensor:
    if logits.dtype is not torch.float32:
        return references.edit(logits, rows, tables, path)
    edits, columns = tables.edits, [tables.sampling[name] for name in references.PENALTIES]
    logits, rows = logits.contiguous(), rows.contiguous()
    path = None if path is None else path.contiguous()
    out = torch.empty_like(logits)
    library().edited(
        out.data_ptr(),
        logits.data_ptr(),
        rows.data_ptr(),
        None if path is None else path.data_ptr(),
        *(table.data_ptr() for table in (edits.slots, edits.counts, edits.biases, *columns)),
        *logits.shape,
        0 if path is None else path.shape[1],
        edits.dummy,
    )
    return out

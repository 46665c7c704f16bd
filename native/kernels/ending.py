"""The end of rows in C++ (rows.cpp): one call instead of some fifteen."""

import torch
from torch import Tensor

from aerie.contracts.step import Ending
from aerie.engine.sampling.ending import Committed
from aerie.engine.state.row_tables import RowTables
from aerie.native.library import library


def cut(tokens: Tensor, counts: Tensor, lengths: Tensor, done: Tensor, rows: Tensor, tables: RowTables) -> Committed:
    count, width = tokens.shape
    answer = torch.empty(2, count, dtype=torch.int64)
    tokens, counts, lengths = tokens.contiguous(), counts.contiguous(), lengths.contiguous()
    library().cut(
        answer[0].data_ptr(),
        answer[1].data_ptr(),
        tokens.data_ptr(),
        counts.data_ptr(),
        lengths.data_ptr(),
        done.data_ptr(),
        rows.data_ptr(),
        tables.limits.data_ptr(),
        tables.stop_ids.data_ptr(),
        count,
        width,
        tables.stop_ids.shape[1],
        int(Ending.OPEN),
        int(Ending.STOP_ID),
        int(Ending.LENGTH),
    )
    return Committed(answer[0], answer[1])

"""Pool slots of positions, in C++ (pool.cpp)."""

import torch
from torch import Tensor

from aerie.native.library import library


def slots(pages: Tensor, page_size: int, rows: Tensor, positions: Tensor) -> Tensor:
    """pages [rows, pages per row] int32 -> pool slots [n] int64 of positions [n] of rows [n]."""
    count, rows, positions = rows.numel(), rows.contiguous(), positions.contiguous()
    out = torch.empty(count, dtype=torch.int64)
    library().slots(
        out.data_ptr(),
        rows.data_ptr(),
        positions.data_ptr(),
        pages.data_ptr(),
        count,
        pages.shape[1],
        page_size,
    )
    return out

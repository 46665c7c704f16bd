"""The Gumbel noise of a step in C++ (noise.cpp): each number is made in registers, where torch makes twenty passes."""

import torch
from torch import Tensor

from aerie.native.library import library


def gumbel(keys: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """keys [n] int64, positions [n] integer, tokens [v] integer ids -> [n, v] float32 of standard Gumbel noise."""
    rows, count = keys.shape[0], tokens.shape[0]
    out = torch.empty(rows, count)
    keys, positions, tokens = (each.long().contiguous() for each in (keys, positions, tokens))
    library().gumbel(out.data_ptr(), keys.data_ptr(), positions.data_ptr(), tokens.data_ptr(), rows, count)
    return out

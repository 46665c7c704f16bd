"""The log probability of a draft token, in C++ (native/src/choice.cpp): torch's logsumexp of one row costs more than
its argmax.
"""

import torch
from torch import Tensor

from aerie.native.library import library


def log_likelihood(logits: Tensor, ids: Tensor, temperatures: Tensor | None) -> Tensor:
    """Head logits [R, Vd], draft ids [R], temperatures [R, 1] or None for 1 -> [R]."""
    rows, count = logits.shape
    out, logits, ids = torch.empty(rows), logits.float().contiguous(), ids.contiguous()
    heat = None if temperatures is None else temperatures.data_ptr()
    library().likelihood(out.data_ptr(), logits.data_ptr(), ids.data_ptr(), heat, rows, count)
    return out

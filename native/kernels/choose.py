"""The choice of a token in C++ (src/{choice,noise,filters}.cpp): one pass over a row's logits, and a few more if the
row is filtered.
"""

import torch
from torch import Tensor

from aerie.contracts.sampling import GREEDY_BELOW
from aerie.engine.sampling import choose as references
from aerie.engine.sampling.choose import Needs
from aerie.engine.state.row_tables import RowTables
from aerie.native.kernels.edits import edit
from aerie.native.library import library


def choose(
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    tables: RowTables,
    needs: Needs,
    *,
    noise: Tensor | None = None,
    path: Tensor | None = None,
    allowed: Tensor | None = None,
) -> Tensor:
    if logits.dtype is not torch.float32:
        return references.choose(logits, rows, positions, tables, needs, noise=noise, path=path, allowed=allowed)
    logits = references.edited(logits, rows, positions, tables, needs, path, allowed, edit)
    if not needs.noise:
        return likeliest(logits)
    temperatures = tables.sampling["temperature"].index_select(0, rows)  # [n]
    if noise is None or needs.filters:  # with filters, the noise of the few remaining tokens is made again
        least = _edges(logits, temperatures, rows, tables) if needs.filters else None
        return _drawn(logits, temperatures, least, tables.noise_keys.index_select(0, rows), positions)
    return _chosen(logits, temperatures, noise)


def likeliest(logits: Tensor) -> Tensor:
    """logits [n, V] fp32 -> [n] int64; ties go to the first."""
    if logits.dtype is not torch.float32:
        return references.likeliest(logits)
    return _chosen(logits, None, None)


def _chosen(logits: Tensor, temperatures: Tensor | None, noise: Tensor | None) -> Tensor:
    """logits and noise [n, V], temperatures [n] -> ids [n] int64."""
    rows, count = logits.shape
    out = torch.empty(rows, dtype=torch.int64)
    logits, noise = logits.contiguous(), None if noise is None else noise.contiguous()
    library().chosen(
        out.data_ptr(),
        logits.data_ptr(),
        None if temperatures is None else temperatures.data_ptr(),
        None if noise is None else noise.data_ptr(),
        rows,
        count,
        GREEDY_BELOW,
    )
    return out


def _edges(logits: Tensor, temperatures: Tensor, rows: Tensor, tables: RowTables) -> Tensor:
    """The lowest logit / T [n] that each row's filters leave."""
    out, logits = torch.empty(rows.numel()), logits.contiguous()
    filters = [tables.sampling[name].index_select(0, rows) for name in references.FILTER_COLUMNS]
    library().edges(
        out.data_ptr(),
        logits.data_ptr(),
        temperatures.data_ptr(),
        *(values.data_ptr() for values in filters),
        *logits.shape,
        GREEDY_BELOW,
    )
    return out


def _drawn(logits: Tensor, temperatures: Tensor, least: Tensor | None, keys: Tensor, positions: Tensor) -> Tensor:
    """logits [n, V], temperatures, least, keys and positions [n] -> ids [n] int64."""
    rows, count = logits.shape
    out = torch.empty(rows, dtype=torch.int64)
    logits, positions = logits.contiguous(), positions.long().contiguous()
    library().drawn(
        out.data_ptr(),
        logits.data_ptr(),
        temperatures.data_ptr(),
        None if least is None else least.data_ptr(),
        keys.data_ptr(),
        positions.data_ptr(),
        rows,
        count,
        GREEDY_BELOW,
    )
    return out

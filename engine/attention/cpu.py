"""Attention on a CPU: each row's pages are gathered and all rows run through one fused product, padded to the longest."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.attention.inputs import AttentionInputs
from engine.kv_pool import KVPool


@dataclass(slots=True)
class _Plan:
    pages: Tensor
    """[rows * pages per row] int64; rows with fewer pages repeat their first, which the mask hides."""
    hidden: Tensor
    """[rows, 1, queries per row, positions] bool, True where a query must not look."""
    shape: tuple[int, int]
    """Rows, and queries per row padded to the most."""
    spread: Tensor | None
    """[rows * queries per row] flat query of each padded place; None where every row has as many."""
    collect: Tensor | None
    """[queries] padded place of each flat query."""
    bias: Tensor | None = None
    """`hidden` as additive bias for the folded queries; made by the pass's first layer, which knows the dtype."""


class CpuAttention:
    """Grouped queries are folded into the query axis, so that keys are never repeated."""

    name = "cpu"

    def plan(self, inputs: AttentionInputs) -> _Plan:
        counts = inputs.qo_indptr.diff()
        rows, most = counts.numel(), int(counts.max())
        page_counts = inputs.kv_indptr.diff()
        width = int(page_counts.max())
        spread = collect = None
        if int(counts.min()) != most:
            places = torch.arange(most)
            filled = places < counts[:, None]
            spread = torch.where(filled, inputs.qo_indptr[:-1, None] + places, inputs.qo_indptr[:-1, None]).flatten().long()
            collect = filled.flatten().nonzero().squeeze(1)
        return _Plan(
            pages=_padded_pages(inputs, page_counts, width),
            hidden=~_seen(inputs, rows, most, width * inputs.page_size, spread)[:, None],
            shape=(rows, most),
            spread=spread,
            collect=collect,
        )

    def run(self, planned: _Plan, query: Tensor, pool: KVPool, layer: int) -> Tensor:
        rows, most = planned.shape
        kv_heads, dim = pool.keys.shape[2:]
        groups = query.shape[1] // kv_heads
        if planned.spread is not None:
            query = query.index_select(0, planned.spread)
        folded = query.view(rows, most, kv_heads, groups, dim).permute(0, 2, 3, 1, 4).reshape(rows, kv_heads, -1, dim)
        keys = self._gather(pool.keys[layer], planned.pages, pool.page_size, rows)
        values = self._gather(pool.values[layer], planned.pages, pool.page_size, rows)
        if planned.bias is None:
            planned.bias = _bias(planned.hidden, groups, query.dtype)
        mixed = scaled_dot_product_attention(folded, keys, values, attn_mask=planned.bias)
        flat = mixed.view(rows, kv_heads, groups, most, dim).permute(0, 3, 1, 2, 4).reshape(rows * most, -1, dim)
        return flat if planned.collect is None else flat.index_select(0, planned.collect)

    @staticmethod
    def _gather(side: Tensor, pages: Tensor, page_size: int, rows: int) -> Tensor:
        """[slots, kv_heads, head_dim] -> [rows, kv_heads, positions, head_dim]."""
        kv_heads, dim = side.shape[1:]
        taken = side.view(-1, page_size * kv_heads * dim).index_select(0, pages)
        return taken.view(rows, -1, kv_heads, dim).transpose(1, 2)


def _bias(hidden: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf")).repeat(1, 1, groups, 1)


def _padded_pages(inputs: AttentionInputs, page_counts: Tensor, width: int) -> Tensor:
    indices = inputs.kv_indices.long()
    if int(page_counts.min()) == width:
        return indices
    places = torch.arange(width)
    inside = places < page_counts[:, None]
    return indices[torch.where(inside, inputs.kv_indptr[:-1, None] + places, inputs.kv_indptr[:-1, None]).flatten().long()]


def _seen(inputs: AttentionInputs, rows: int, most: int, positions: int, spread: Tensor | None) -> Tensor:
    """[rows, queries per row, positions] bool."""
    beyond = torch.arange(positions)[None, :] - inputs.prefix_lens.long()[:, None]
    if inputs.words is None:
        return beyond[:, None, :] <= torch.arange(most)[None, :, None]
    words = inputs.words if spread is None else inputs.words.index_select(0, spread)
    bits = (words.view(rows, most, 1) >> beyond.clamp(0, 63)[:, None, :]) & 1
    inside = (beyond >= 0) & (beyond < 64)
    return (beyond < 0)[:, None, :] | ((bits == 1) & inside[:, None, :])

"""Attention on a CPU: gathers each row's pages and runs rows through one fused product, padded to the longest. Rows of
very different lengths run in parts, so that a long prompt does not lengthen every short row.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from aerie.engine.attention.inputs import AttentionInputs
from aerie.engine.attention.parts import parts_of
from aerie.engine.state.kv_pool import KVPool

_OPEN, _SHUT = torch.tensor(0.0), torch.tensor(float("-inf"))


@dataclass(slots=True)
class _Plan:
    pages: Tensor
    """[rows * pages per row] int64; rows with fewer pages repeat their first page, which the mask hides."""
    beyond: Tensor
    """[rows, 1, positions] int64: position - true prefix length."""
    words: Tensor | None
    """[queries] ancestor words, None for causal."""
    bits: Tensor | None
    """`beyond` as bits, with words: all bits before the prefix's end, then one bit per node, none past the 64th."""
    shape: tuple[int, int]
    """Rows, and queries per row padded to the maximum."""
    spread: Tensor | None
    """[rows * queries per row] flat query of each padded place; None if all rows have the same number of queries."""
    collect: Tensor | None
    """[queries] padded place of each flat query."""
    bias: Tensor | None = None
    """Additive mask of the folded queries. The pass's first layer makes it, since it knows the dtype."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """Rows that run in separate parts: the flat queries of each part, and its plan."""

    parts: tuple[tuple[Tensor, _Plan], ...]


class CpuAttention:
    """Grouped queries are folded into the query axis, so that keys are never repeated."""

    name = "cpu"

    def plan(self, inputs: AttentionInputs) -> _Plan | _Parts:
        parts = parts_of(inputs.qo_indptr.diff().tolist(), inputs.kv_indptr.diff().tolist(), inputs.page_size)
        if len(parts) == 1:
            return self._padded(inputs)
        taken = [_taken(inputs, torch.tensor(rows)) for rows in parts]
        return _Parts(tuple((queries, self._padded(own)) for queries, own in taken))

    def _padded(self, inputs: AttentionInputs) -> _Plan:
        counts = inputs.qo_indptr.diff()  # [rows]
        rows, most = counts.numel(), int(counts.max())
        page_counts = inputs.kv_indptr.diff()  # [rows]
        width = int(page_counts.max())
        spread = collect = None
        if int(counts.min()) != most:
            places = torch.arange(most)  # [most]
            filled = places < counts[:, None]  # [rows, most]
            spread = (
                torch.where(filled, inputs.qo_indptr[:-1, None] + places, inputs.qo_indptr[:-1, None]).flatten().long()
            )
            collect = filled.flatten().nonzero().squeeze(1)
        beyond = (torch.arange(width * inputs.page_size) - inputs.prefix_lens[:, None])[:, None]  # [rows, 1, positions]
        return _Plan(
            pages=_padded_pages(inputs, page_counts, width),
            beyond=beyond,
            bits=None if inputs.words is None else _bits(beyond),
            words=inputs.words,
            shape=(rows, most),
            spread=spread,
            collect=collect,
        )

    def see(self, planned: _Plan | _Parts, words: Tensor) -> _Plan | _Parts:
        if isinstance(planned, _Parts):
            parts = ((queries, self._see(part, words.index_select(0, queries))) for queries, part in planned.parts)
            return _Parts(tuple(parts))
        return self._see(planned, words)

    def _see(self, planned: _Plan, words: Tensor) -> _Plan:
        if planned.bits is None:
            planned.bits = _bits(planned.beyond)  # kept, since all levels of a draft start here
        return replace(planned, words=words, bias=None)

    def run(self, planned: _Plan | _Parts, query: Tensor, pool: KVPool, layer: int) -> Tensor:
        if not isinstance(planned, _Parts):
            return self._run(planned, query, pool, layer)
        mixed = torch.empty_like(query)
        for queries, part in planned.parts:
            mixed.index_copy_(0, queries, self._run(part, query.index_select(0, queries), pool, layer))
        return mixed

    def _run(self, planned: _Plan, query: Tensor, pool: KVPool, layer: int) -> Tensor:
        rows, most = planned.shape
        kv_heads, dim = pool.keys.shape[2:]
        groups = query.shape[1] // kv_heads
        if planned.spread is not None:
            query = query.index_select(0, planned.spread)  # [rows * most, heads, dim]
        folded = query.unflatten(0, (rows, most)).unflatten(2, (kv_heads, groups))
        folded = folded.permute(0, 2, 3, 1, 4).reshape(rows, kv_heads, -1, dim)  # [rows, kv_heads, groups * most, dim]
        # [rows, kv_heads, positions, dim] each
        keys, values = (
            side.view(rows, -1, kv_heads, dim).transpose(1, 2) for side in pool.gather(layer, planned.pages)
        )
        if planned.bias is None:
            planned.bias = _bias(planned, groups, query.dtype)
        mixed = scaled_dot_product_attention(folded, keys, values, attn_mask=planned.bias)  # as folded
        # the padded queries: [rows * most, heads, dim]
        flat = mixed.view(rows, kv_heads, groups, most, dim).permute(0, 3, 1, 2, 4).reshape(rows * most, -1, dim)
        return flat if planned.collect is None else flat.index_select(0, planned.collect)


def _taken(inputs: AttentionInputs, rows: Tensor) -> tuple[Tensor, AttentionInputs]:
    """The flat queries [n] of rows [r], and the attention inputs of these rows."""
    queries, qo_indptr = _slices(inputs.qo_indptr, rows)
    pages, kv_indptr = _slices(inputs.kv_indptr, rows)
    return queries, replace(
        inputs,
        qo_indptr=qo_indptr,
        kv_indptr=kv_indptr,
        kv_indices=inputs.kv_indices.index_select(0, pages),
        last_page_len=inputs.last_page_len.index_select(0, rows),
        prefix_lens=inputs.prefix_lens.index_select(0, rows),
        words=None if inputs.words is None else inputs.words.index_select(0, queries),
    )


def _slices(indptr: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The entries [n] of rows [r] in a ragged list, and the bounds [r + 1] of a list that holds only these."""
    starts, counts = indptr[rows].long(), indptr.diff()[rows].long()  # [r] each
    bounds = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    entries = torch.arange(int(bounds[-1])) + (starts - bounds[:-1]).repeat_interleave(counts)
    return entries, bounds.to(indptr.dtype)


def _bias(planned: _Plan, groups: int, dtype: torch.dtype) -> Tensor:
    """[rows, 1, groups * queries per row, positions]: 0 where a query may look, else -inf. If rows have one query each,
    all groups share its mask.
    """
    bias = torch.where(_seen(planned), _OPEN, _SHUT).to(dtype)[:, None]
    return bias if groups == 1 or planned.shape[1] == 1 else bias.repeat(1, 1, groups, 1)


def _padded_pages(inputs: AttentionInputs, page_counts: Tensor, width: int) -> Tensor:
    """[rows * width] int64, as `_Plan.pages`."""
    indices = inputs.kv_indices.long()
    if int(page_counts.min()) == width:
        return indices
    places = torch.arange(width)
    inside = places < page_counts[:, None]  # [rows, width]
    return indices[
        torch.where(inside, inputs.kv_indptr[:-1, None] + places, inputs.kv_indptr[:-1, None]).flatten().long()
    ]


def _bits(beyond: Tensor) -> Tensor:
    """beyond [rows, 1, positions] -> the same shape."""
    node = torch.ones_like(beyond) << beyond.clamp(0, 63)
    return torch.where(beyond < 0, -1, node.masked_fill_(beyond > 63, 0))


def _seen(planned: _Plan) -> Tensor:
    """[rows, queries per row, positions] bool."""
    (rows, most), words = planned.shape, planned.words
    if words is None:
        return planned.beyond <= (torch.arange(most)[:, None] if most > 1 else 0)
    if planned.spread is not None:
        words = words.index_select(0, planned.spread)
    assert planned.bits is not None
    return (words.view(rows, most, 1) & planned.bits) != 0

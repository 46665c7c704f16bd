"""Paged attention over ragged queries and ancestor words, in two kernels: partial sums over splits, and their merge.

Called by engine/attention/triton.py; the reference is engine/attention/reference.py. A program takes one tile of a
row's queries, with all heads of one KV head folded in, over one split of the row's positions. It reads true prefix
lengths on the device, so the host's upper bounds cost only empty programs. Softmax runs in base 2.
"""

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634


@triton.jit
def attend_tiles(
    out,
    sums,
    query,
    keys,
    values,
    words,
    tile_rows,
    tile_firsts,
    qo_indptr,
    kv_indptr,
    kv_indices,
    prefix_lens,
    scale,
    query_stride,
    slot_stride,
    split_stride,
    page_size,
    tree: tl.constexpr,
    splits: tl.constexpr,
    heads: tl.constexpr,
    groups: tl.constexpr,
    dim: tl.constexpr,
    block_dim: tl.constexpr,
    block_queries: tl.constexpr,
    block_positions: tl.constexpr,
):
    """Grid (tiles, kv_heads, splits). `out` [splits, queries, heads, dim]: attention over a split; `sums` [splits,
    queries, heads]: log2 of its softmax sum, -inf where a query saw nothing. `scale` includes log2(e).
    """
    row, kv_head, split = tl.load(tile_rows + tl.program_id(0)), tl.program_id(1), tl.program_id(2)
    first, last = tl.load(qo_indptr + row), tl.load(qo_indptr + row + 1)
    folded = tl.load(tile_firsts + tl.program_id(0)) + tl.arange(0, block_queries)
    places, head, columns = folded // groups, kv_head * groups + folded % groups, tl.arange(0, block_dim)
    real, flat = places < last - first, (first + places).to(tl.int64)
    used = real[:, None] & (columns < dim)[None, :]
    offsets = flat[:, None] * query_stride + head[:, None] * dim + columns[None, :]
    asked = tl.load(query + offsets, mask=used, other=0.0)
    word = tl.load(words + flat, mask=real, other=0) if tree else places.to(tl.int64)
    start, stop, prefix = _span(
        prefix_lens, kv_indptr, row, last - first, split, page_size, tree, splits, block_positions
    )
    pages = kv_indices + tl.load(kv_indptr + row)
    peak, total = tl.full([block_queries], float("-inf"), tl.float32), tl.zeros([block_queries], tl.float32)
    mixed = tl.zeros([block_queries, block_dim], tl.float32)
    for position in range(start, stop, block_positions):
        positions = position + tl.arange(0, block_positions)
        inside = positions < stop
        place = _slots(pages, positions, inside, page_size) * slot_stride + kv_head * dim
        held = inside[:, None] & (columns < dim)[None, :]
        key = tl.load(keys + place[:, None] + columns[None, :], mask=held, other=0.0)
        scores = tl.dot(asked, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(_seen(positions - prefix, word, tree) & inside[None, :], scores, float("-inf"))
        value = tl.load(values + place[:, None] + columns[None, :], mask=held, other=0.0)
        peak, total, mixed = _fold(peak, total, mixed, scores, value)
    whole, target = tl.where(total > 0, total, 1.0), split * (split_stride // dim) + flat * heads + head
    answers = (mixed / whole[:, None]).to(out.dtype.element_ty)
    tl.store(out + target[:, None] * dim + columns[None, :], answers, mask=used)
    if splits > 1:
        tl.store(sums + target, tl.where(total > 0, peak + tl.log2(whole), float("-inf")), mask=real)


@triton.jit
def _span(
    prefix_lens,
    kv_indptr,
    row,
    queries,
    split,
    page_size,
    tree: tl.constexpr,
    splits: tl.constexpr,
    block_positions: tl.constexpr,
):
    """First position of a split, its end, and the row's true prefix length. A split is whole blocks of positions. It
    skips what no query sees: past the 64th node with words, past the last query without.
    """
    prefix = tl.load(prefix_lens + row).to(tl.int32)
    covered = (tl.load(kv_indptr + row + 1) - tl.load(kv_indptr + row)) * page_size
    end = tl.minimum(covered, prefix + (64 if tree else queries))
    length = tl.cdiv(tl.cdiv(end, splits), block_positions) * block_positions
    return split * length, tl.minimum(split * length + length, end), prefix


@triton.jit
def _slots(pages, positions, inside, page_size):
    page = tl.load(pages + positions // page_size, mask=inside, other=0).to(tl.int64)
    return page * page_size + positions % page_size


@triton.jit
def _seen(beyond, word, tree: tl.constexpr):
    """[queries, positions]: by ancestor words, or causal, where `word` is the query's index in its row."""
    if tree:
        node = (word[:, None] >> tl.minimum(tl.maximum(beyond, 0), 63)[None, :].to(tl.int64)) & 1
        return (beyond < 0)[None, :] | ((beyond < 64)[None, :] & (node == 1))
    return beyond[None, :] <= word[:, None]


@triton.jit
def _fold(peak, total, mixed, scores, value):
    """Adds one block of positions to the running softmax: highest score, sum of weights and weighted values."""
    higher = tl.maximum(peak, tl.max(scores, 1))
    base = tl.where(higher == float("-inf"), 0.0, higher)
    weights, shrink = tl.exp2(scores - base[:, None]), tl.exp2(peak - base)
    added = tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return higher, total * shrink + tl.sum(weights, 1), mixed * shrink[:, None] + added


@triton.jit
def merge_splits(
    out,
    parts,
    sums,
    split_stride,
    splits: tl.constexpr,
    block_splits: tl.constexpr,
    dim: tl.constexpr,
    block_dim: tl.constexpr,
):
    """Grid (queries * heads). Merges the parts [splits, ., dim] of a query's head, weighted by their softmax sums."""
    place = tl.program_id(0).to(tl.int64)
    each, columns = tl.arange(0, block_splits), tl.arange(0, block_dim)
    logs = tl.load(sums + each * (split_stride // dim) + place, mask=each < splits, other=float("-inf"))
    weights = tl.exp2(logs - tl.max(logs, 0))
    held = (each < splits)[:, None] & (columns < dim)[None, :]
    part = tl.load(parts + (each * split_stride + place * dim)[:, None] + columns[None, :], mask=held, other=0.0)
    mixed = tl.sum(part * (weights / tl.sum(weights, 0))[:, None], 0)
    tl.store(out + place * dim + columns, mixed.to(out.dtype.element_ty), mask=columns < dim)

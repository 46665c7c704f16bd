"""Attention by Aerie's own Triton kernels: any head size and dtype, including fp32, on every GPU that Triton supports.

The fallback if FlashInfer is missing or cannot serve the shape. The kernel handles everything that depends on true
lengths, so a plan is four small arrays of host counts.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
import triton
from torch import Tensor

from aerie.engine.attention.inputs import AttentionInputs, AttentionShape, FixedPages
from aerie.engine.kernels.attention import LOG2_E, attend_tiles, merge_splits
from aerie.engine.state.kv_pool import KVPool

_BLOCK_BYTES = 128
"""Bytes of one column of a block of positions: 64 of 16 bits or 32 of fp32, so that the smallest GPUs hold a block."""
_LEAST_SPLIT = 256
"""Below this many positions a split costs more than it saves."""
_MOST_SPLITS = 64
_LONG = 1 << 20
"""Positions that are enough for any split."""


@dataclass(slots=True)
class _Plan:
    prefix_lens: Tensor
    """[rows] int64"""
    kv_indices: Tensor
    """[pages] int32"""
    words: Tensor | None
    """[queries] int64"""
    qo_indptr: Tensor
    kv_indptr: Tensor
    """[rows + 1] int32 on the device, as `qo_indptr`."""
    tile_rows: Tensor
    """[tiles] int32: the row of each tile."""
    tile_firsts: Tensor
    """[tiles] int32: the first of each tile among its row's folded queries."""
    page_size: int
    block_queries: int
    splits: int


class TritonAttention:
    """One program per tile of queries, KV head and split of positions; splits fill the device if rows are few."""

    name = "triton"

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape
        self._groups = shape.heads // shape.kv_heads
        on_gpu = shape.device.type == "cuda"
        self._processors = torch.cuda.get_device_properties(shape.device).multi_processor_count if on_gpu else 4

    def plan(self, inputs: AttentionInputs) -> _Plan:
        longest = int(np.diff(np.asarray(inputs.kv_indptr)).max())
        return self._planned(inputs, longest)

    def splits(self, rows: int, queries: int) -> bool:
        return self._splits(rows * -(-queries * self._groups // _block(queries * self._groups)), _LONG) > 1

    def hold(self, inputs: AttentionInputs, pages: FixedPages, *, split: bool) -> _Plan:
        """Splits are sized for rows that share `pages` evenly; those of a longer row are longer."""
        rows = inputs.kv_indptr.numel() - 1
        planned = self._planned(inputs, pages.kv_indices.numel() // rows if split else 0)
        planned.kv_indptr, planned.kv_indices = pages.kv_indptr, pages.kv_indices
        return planned

    def renew(self, held: _Plan, kv_indptr: Tensor) -> None:
        """The kernel reads the pages of its rows on the device."""

    def _planned(self, inputs: AttentionInputs, row_pages: int) -> _Plan:
        qo_indptr, kv_indptr = np.asarray(inputs.qo_indptr), np.asarray(inputs.kv_indptr)
        folded = np.diff(qo_indptr) * self._groups  # [rows], as tiles
        block = _block(int(folded.max()))
        tiles = -(-folded // block)
        rows = np.repeat(np.arange(tiles.size), tiles)  # [tiles of all rows], as firsts
        firsts = (np.arange(rows.size) - np.repeat(np.cumsum(tiles) - tiles, tiles)) * block
        parts = [part.astype(np.int32) for part in (qo_indptr, kv_indptr, rows, firsts)]
        packed = torch.from_numpy(np.concatenate(parts)).to(self._shape.device, non_blocking=True)
        on_device = packed.split([part.size for part in parts])
        return _Plan(
            prefix_lens=inputs.prefix_lens,
            kv_indices=inputs.kv_indices,
            words=inputs.words,
            qo_indptr=on_device[0],
            kv_indptr=on_device[1],
            tile_rows=on_device[2],
            tile_firsts=on_device[3],
            page_size=inputs.page_size,
            block_queries=block,
            splits=self._splits(rows.size, row_pages * inputs.page_size),
        )

    def see(self, planned: _Plan, words: Tensor) -> _Plan:
        return replace(planned, words=words)

    def run(self, planned: _Plan, query: Tensor, pool: KVPool, layer: int) -> Tensor:
        shape, splits = self._shape, planned.splits
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        # parts and sums: [splits, queries, heads, head_dim] and [splits, queries, heads]; without splits both are `out`
        parts = out if splits == 1 else out.new_empty((splits, *out.shape), dtype=torch.float32)
        sums = parts if splits == 1 else parts.new_empty(parts.shape[:-1])
        keys, values = pool.keys[layer], pool.values[layer]  # [slots, kv_heads, head_dim] each
        block_dim = max(16, triton.next_power_of_2(shape.head_dim))
        attend_tiles[planned.tile_rows.numel(), shape.kv_heads, splits](
            parts,
            sums,
            query,
            keys,
            values,
            planned.words if planned.words is not None else planned.qo_indptr,
            planned.tile_rows,
            planned.tile_firsts,
            planned.qo_indptr,
            planned.kv_indptr,
            planned.kv_indices,
            planned.prefix_lens,
            LOG2_E / shape.head_dim**0.5,
            query.stride(0),
            keys.stride(0),
            out.numel(),
            planned.page_size,
            tree=planned.words is not None,
            splits=splits,
            heads=shape.heads,
            groups=self._groups,
            dim=shape.head_dim,
            block_dim=block_dim,
            block_queries=planned.block_queries,
            block_positions=_BLOCK_BYTES // shape.dtype.itemsize,
        )
        if splits > 1:
            merge_splits[(query.shape[0] * shape.heads,)](
                out,
                parts,
                sums,
                out.numel(),
                splits=splits,
                block_splits=triton.next_power_of_2(splits),
                dim=shape.head_dim,
                block_dim=block_dim,
            )
        return out

    def _splits(self, tiles: int, longest: int) -> int:
        """A power of two, so that few kernels are compiled; enough for two programs on each processor."""
        wanted = -(-2 * self._processors // (tiles * self._shape.kv_heads))
        useful = max(1, min(wanted, longest // _LEAST_SPLIT, _MOST_SPLITS))
        return 1 << (useful.bit_length() - 1)


def _block(folded: int) -> int:
    """Queries of a tile, for rows of at most `folded` of them."""
    return min(64, max(16, 1 << (folded - 1).bit_length()))

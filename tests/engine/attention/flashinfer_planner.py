"""FlashInfer's FA2 planner in Python: which block takes which tile of which row's queries and positions.

It stands in where the wheel is not installed; where it is, the two are compared. Written after the planner's rules:
blocks are split until they fill the device once, a graph's grid is padded to its largest, chunks are whole pages.
"""

import numpy as np
import torch

FIELDS = (
    "padded_batch_size",
    "total_num_rows",
    "total_num_rows_offset",
    "cta_tile_q",
    "request_indices_offset",
    "qo_tile_indices_offset",
    "kv_tile_indices_offset",
    "merge_indptr_offset",
    "o_indptr_offset",
    "kv_chunk_size_ptr_offset",
    "v_offset",
    "s_offset",
    "block_valid_mask_offset",
    "enable_cuda_graph",
    "split_kv",
)
_LEAST_CHUNK = 128


class Allocator:
    """Offsets in a workspace."""

    def __init__(self) -> None:
        self.end = 0

    def take(self, size: int, alignment: int = 16) -> int:
        start = -(-self.end // alignment) * alignment
        self.end = start + size
        return start


def plan(
    scratch: torch.Tensor,
    schedule: torch.Tensor,
    pinned: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    lengths: torch.Tensor,
    queries: int,
    rows: int,
    heads: int,
    kv_heads: int,
    page_size: int,
    graph: bool,
    head_dim: int,
    _head_dim_vo: int,
    _causal: bool,
    _window: int,
    _fixed: int,
    no_split: bool,
    _colocated: int,
    uniform: int,
    processors: int = 132,
) -> list[int]:
    del lengths
    groups, resident = heads // kv_heads, 2 * processors // kv_heads
    folded = np.diff(qo_indptr.numpy()).astype(int) * groups
    pages = np.maximum(np.diff(kv_indptr.numpy()).astype(int), 1)
    if graph:
        longest = (uniform or queries - rows + 1) * groups
        tile = _tile(longest, head_dim)
        tiles = rows * -(-longest // tile) if uniform else -(-queries * groups // tile) + rows - 1
    else:
        tile = _tile(int(folded.sum()) // rows, head_dim)
        tiles = int((-(-folded // tile)).sum())
    chunk, split = _chunk(-(-folded // tile), pages, page_size, resident)
    if no_split:
        chunk, split = int(pages.max()), False
    else:
        split = split or graph
    chunks = -(-pages // chunk)
    blocks = [
        (row, tile_index, chunk_index)
        for row in range(rows)
        for tile_index in range(-(-folded[row] // tile))
        for chunk_index in range(chunks[row])
    ]
    padded = max(resident, tiles) if graph else len(blocks)
    counts = folded // groups
    merge = np.concatenate([[0], np.cumsum(np.repeat(chunks, counts))])
    return _write(schedule, pinned, blocks, padded, np.cumsum([0, *(counts * chunks)]), merge, chunk * page_size, [
        queries, tile, int(graph), int(split), int(qo_indptr[-1]), heads, head_dim, scratch.numel()
    ])  # fmt: skip


def _tile(folded: int, head_dim: int) -> int:
    return 16 if folded <= 16 else 64 if folded <= 64 or head_dim >= 256 else 128


def _chunk(tiles: np.ndarray, pages: np.ndarray, page_size: int, resident: int) -> tuple[int, bool]:
    """Pages of a chunk: the fewest with which all blocks fit the device at once."""
    low, high = max(_LEAST_CHUNK // page_size, 1), int(pages.max())
    while low < high:
        middle = (low + high) // 2
        if int((tiles * -(-pages // middle)).sum()) > resident:
            low = middle + 1
        else:
            high = middle
    return low, low < int(pages.max())


def _write(
    schedule: torch.Tensor,
    pinned: torch.Tensor,
    blocks: list[tuple[int, int, int]],
    padded: int,
    o_indptr: np.ndarray,
    merge: np.ndarray,
    chunk: int,
    facts: list[int],
) -> list[int]:
    queries, tile, graph, split, total, heads, head_dim, scratch_size = facts
    words, place = Allocator(), {}
    for name in ("request_indices", "qo_tile_indices", "kv_tile_indices"):
        place[name] = words.take(4 * padded)
    place["o_indptr"] = words.take(4 * o_indptr.size)
    place["chunk"] = words.take(4, 1)
    place["total"] = words.take(4) if graph else 0
    floats = Allocator()
    v = s = place["merge"] = place["valid"] = 0
    if split:
        v, s = floats.take(4 * heads * padded * tile * head_dim), floats.take(4 * heads * padded * tile)
        place["merge"], place["valid"] = words.take(4 * (queries + 1)), words.take(padded)
    if words.end > schedule.numel() or words.end > pinned.numel() or floats.end > scratch_size:
        raise RuntimeError("the workspace is too small")
    memory = pinned.numpy()

    def put(name: str, values: np.ndarray) -> None:
        raw = np.ascontiguousarray(values).view(np.uint8)
        memory[place[name] : place[name] + raw.size] = raw

    columns = np.array(blocks, dtype=np.int32).reshape(-1, 3).T
    for name, column in zip(("request_indices", "qo_tile_indices", "kv_tile_indices"), columns, strict=True):
        put(name, column)
    put("o_indptr", o_indptr.astype(np.int32))
    put("chunk", np.array([chunk], dtype=np.int32))
    if graph:
        put("total", np.array([total], dtype=np.int32))
    if split:
        put("merge", merge.astype(np.int32))
        put("valid", (np.arange(padded) < len(blocks)).astype(np.uint8))
    schedule[: words.end].copy_(pinned[: words.end])
    return [
        padded, queries, place["total"], tile, place["request_indices"], place["qo_tile_indices"],
        place["kv_tile_indices"], place["merge"], place["o_indptr"], place["chunk"], v, s, place["valid"], graph, split,
    ]  # fmt: skip

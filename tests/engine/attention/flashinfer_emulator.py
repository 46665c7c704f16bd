"""FlashInfer's FA2 kernel with Aerie's variant, in torch: it reads nothing but what the real kernel is given.

Blocks take their row, tile and chunk from the schedule; partial results are laid out by the lengths of the *device*
arrays and merged by the *planned* counts, as the kernel does, so that a mismatch between the two shows.
"""

import itertools
import math
from typing import Any

import torch

from tests.engine.attention import flashinfer_planner
from tests.engine.attention.flashinfer_planner import FIELDS

CAUSAL, CUSTOM = 1, 2


class EmulatedModule:
    """Implements engine.attention.flashinfer_modules.Module; the planner is `real` or the one in Python."""

    def __init__(self, real: Any = None) -> None:
        self.plan = flashinfer_planner.plan if real is None else real.plan
        self.calls: list[tuple[Any, ...]] = []
        self.wide = torch.empty(0)
        """The last answer before it was rounded to 16 bits."""

    def workspace_size(self, *arguments: Any) -> Any:
        raise NotImplementedError

    def paged_run(self, *arguments: Any) -> None:
        self.calls.append(arguments)
        self.wide = emulate(*arguments)
        arguments[10].copy_(self.wide)


def emulate(
    scratch: torch.Tensor,
    schedule: torch.Tensor,
    info: Any,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    last_page_len: torch.Tensor,
    out: torch.Tensor,
    _lse: None,
    mode: int,
    layout: int,
    window: int,
    _pdl: bool,
    words: torch.Tensor,
    prefix_lens: torch.Tensor,
    scale: float,
    causal: int,
) -> torch.Tensor:
    """-> [queries, heads, head_dim] fp32"""
    assert (layout, window) == (0, -1) and words.dtype == prefix_lens.dtype == torch.int64
    for array in (qo_indptr, kv_indptr, kv_indices, last_page_len):
        assert array.dtype == torch.int32 and array.is_contiguous()
    plan = dict(zip(FIELDS, (int(value) for value in info), strict=True))
    blocks, tile, split = plan["padded_batch_size"], plan["cta_tile_q"], plan["split_kv"]
    heads, dim = query.shape[1:]
    groups, page_size = heads // keys.shape[2], keys.shape[1]

    def read(name: str, count: int) -> list[int]:
        offset = plan[f"{name}_offset"]
        return schedule[offset : offset + 4 * count].view(torch.int32).tolist()

    requests, tiles, chunks = (read(f"{name}_indices", blocks) for name in ("request", "qo_tile", "kv_tile"))
    o_indptr, chunk = read("o_indptr", qo_indptr.numel()), read("kv_chunk_size_ptr", 1)[0]
    valid = schedule[plan["block_valid_mask_offset"] :][:blocks].tolist() if plan["enable_cuda_graph"] else [1] * blocks
    partial = torch.full((max(o_indptr[-1], 1) if split else query.shape[0], heads, dim), torch.nan)
    sums = torch.full(partial.shape[:2], torch.nan)
    if split:
        assert plan["s_offset"] + 4 * partial.shape[0] * heads <= scratch.numel()
    for block in range(blocks):
        if not valid[block]:
            continue
        row = requests[block]
        first, count = int(qo_indptr[row]), int(qo_indptr[row + 1] - qo_indptr[row])
        length = int((kv_indptr[row + 1] - kv_indptr[row] - 1) * page_size + last_page_len[row])
        low, high = (chunks[block] * chunk, min((chunks[block] + 1) * chunk, length)) if split else (0, length)
        places = torch.arange(low, max(low, high))
        pages = kv_indices[int(kv_indptr[row]) + places // page_size].long()
        key, value = (side[pages, places % page_size].float() for side in (keys, values))
        folded = torch.arange(tiles[block] * tile, min((tiles[block] + 1) * tile, count * groups))
        asked, group = folded // groups, folded % groups
        taken = query[first + asked].float().unflatten(1, (-1, groups))[torch.arange(folded.numel()), :, group]
        assert mode in (CAUSAL, CUSTOM)
        if mode == CAUSAL:
            seen = places[None, :] + count <= length + asked[:, None]
        else:
            seen = _variant(places, asked, int(prefix_lens[row]), words[first : first + count], causal)
        answer, log = _attended(taken * scale, key, value, seen)
        kinds = torch.arange(key.shape[1])[None, :] * groups + group[:, None]
        target = o_indptr[row] + asked * -(-length // chunk) + chunks[block] if split else first + asked
        partial[target[:, None], kinds], sums[target[:, None], kinds] = answer, log
    if not split:
        return partial
    return _merged(partial, sums, read("merge_indptr", query.shape[0] + 1))


def _attended(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A block's answers and the logs of their softmax sums; what it must not see weighs next to nothing."""
    scores = torch.einsum("qhd,phd->qhp", query, key).masked_fill(~seen[:, None, :], -5e4)
    if not key.shape[0]:
        return torch.zeros(query.shape), torch.full(scores.shape[:2], -5e4)
    return torch.einsum("qhp,phd->qhd", scores.softmax(-1), value), scores.logsumexp(-1)


def _merged(partial: torch.Tensor, sums: torch.Tensor, merge: list[int]) -> torch.Tensor:
    spans = [slice(start, end) for start, end in itertools.pairwise(merge)]
    merged = torch.stack([(sums[span].softmax(0)[..., None] * partial[span]).sum(0) for span in spans])
    assert math.isfinite(float(merged.sum())), "a partial result was merged that no block wrote"
    return merged


def _variant(places: torch.Tensor, asked: torch.Tensor, prefix: int, words: torch.Tensor, causal: int) -> torch.Tensor:
    node = places - prefix
    if causal:
        return node[None, :] <= asked[:, None]
    bits = (words[asked][:, None] >> node.clamp(0, 63)[None, :]) & 1
    return (node < 0)[None, :] | ((node < 64)[None, :] & (bits == 1))

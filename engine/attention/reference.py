"""Dense attention, slow and simple: the reference that every backend must equal on the golden cases."""

from dataclasses import replace

import torch
from torch import Tensor

from aerie.engine.attention.inputs import AttentionInputs
from aerie.engine.state.kv_pool import KVPool


class ReferenceAttention:
    """Gathers each row's pages, builds its full mask and takes an fp32 softmax."""

    name = "reference"

    def plan(self, inputs: AttentionInputs) -> AttentionInputs:
        return inputs

    def see(self, planned: AttentionInputs, words: Tensor) -> AttentionInputs:
        return replace(planned, words=words)

    def run(self, planned: AttentionInputs, query: Tensor, pool: KVPool, layer: int) -> Tensor:
        """query [queries, heads, head_dim] -> the same shape."""
        out = torch.empty_like(query)
        for row in range(planned.qo_indptr.numel() - 1):
            first, last = int(planned.qo_indptr[row]), int(planned.qo_indptr[row + 1])
            slots = row_slots(planned, row)
            # [positions, kv_heads, head_dim] each, then repeated for the queries' heads
            keys, values = pool.keys[layer, slots].float(), pool.values[layer, slots].float()
            groups = query.shape[1] // keys.shape[1]
            keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
            scores = torch.einsum("qhd,khd->hqk", query[first:last].float(), keys) / query.shape[2] ** 0.5
            scores = scores.masked_fill(~row_mask(planned, row, slots.numel()), float("-inf"))
            out[first:last] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).to(query.dtype)
        return out


def row_slots(inputs: AttentionInputs, row: int) -> Tensor:
    """[positions] slots of every position that the row's pages hold, in order."""
    pages = inputs.kv_indices[int(inputs.kv_indptr[row]) : int(inputs.kv_indptr[row + 1])].long()  # [pages of the row]
    size = inputs.page_size
    slots = (pages[:, None] * size + torch.arange(size, device=pages.device)).flatten()
    return slots[: slots.numel() - size + int(inputs.last_page_len[row])]


def row_mask(inputs: AttentionInputs, row: int, positions: int) -> Tensor:
    """[queries of the row, positions] bool."""
    first, last = int(inputs.qo_indptr[row]), int(inputs.qo_indptr[row + 1])
    device = inputs.prefix_lens.device
    beyond = torch.arange(positions, device=device) - inputs.prefix_lens[row]  # [positions]
    if inputs.words is None:
        return beyond[None, :] <= torch.arange(last - first, device=device)[:, None]
    seen = (inputs.words[first:last, None] >> beyond.clamp(0, 63)[None, :]) & 1  # [queries, positions]
    return (beyond < 0)[None, :] | ((seen == 1) & ((beyond >= 0) & (beyond < 64))[None, :])

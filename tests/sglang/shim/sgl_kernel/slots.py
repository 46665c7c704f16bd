"""Bookkeeping of pool slots: which slots a row's draft, tree and committed tokens have, and moving their KV."""

import ctypes

import torch
from torch import Tensor


def assign_req_to_token_pool_cpu(
    rows: Tensor, slot_table: Tensor, starts: Tensor, ends: Tensor, slots: Tensor, _width: int
) -> None:
    """Writes the next `ends - starts` of `slots` into each row's table."""
    parts = slots.split((ends - starts).tolist())
    for row, start, end, part in zip(rows.tolist(), starts.tolist(), ends.tolist(), parts, strict=True):
        slot_table[row, start:end] = part.to(slot_table.dtype)


def assign_extend_cache_locs_cpu(
    rows: Tensor, slot_table: Tensor, starts: Tensor, ends: Tensor, out: Tensor, _width: int
) -> None:
    """Reads the slots of positions starts..ends of each row, one row after the other, into `out`."""
    places = [
        slot_table[row, start:end]
        for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
    ]
    flat = torch.cat(places).to(out.dtype)
    out[: flat.numel()] = flat


def assign_draft_cache_locs_contiguous_cpu(
    rows: Tensor, slot_table: Tensor, lengths: Tensor, out: Tensor, _width: int, topk: int, steps: int
) -> None:
    """The `topk * steps` slots after each row's length."""
    each = topk * steps
    assign_extend_cache_locs_cpu(rows, slot_table, lengths, lengths + each, out, _width)


def build_draft_decode_metadata_cpu(
    slot_table: Tensor, rows: Tensor, lengths: Tensor, topk: int, steps: int, width: int
) -> Tensor:
    """A table of its own for every branch: the row's prefix, then the branch's draft slots."""
    table = torch.zeros(rows.numel() * topk, width, dtype=slot_table.dtype)
    for index, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        for branch in range(topk):
            entry, first = table[index * topk + branch], length + branch * steps
            entry[:length] = slot_table[row, :length]
            entry[length : length + steps] = slot_table[row, first : first + steps]
    return table


def fill_bonus_tokens_cpu(accepted: Tensor, counts: Tensor, bonus: Tensor, stride: int) -> None:
    """The last accepted token of each row."""
    lasts = torch.arange(counts.numel()) * stride + counts.long() - 1
    bonus.copy_(accepted.reshape(-1)[lasts].to(bonus.dtype))


def fill_accept_out_cache_loc_cpu(accepted: Tensor, slots: Tensor, out: Tensor) -> None:
    """The slots of the accepted nodes, packed; -1 marks a node that is none."""
    nodes = accepted.reshape(-1)
    nodes = nodes[nodes >= 0].long()
    out[: nodes.numel()] = slots[nodes]


def copy_all_layer_kv_cache_cpu(pointers: Tensor, strides: Tensor, targets: Tensor, sources: Tensor) -> None:
    """Moves the KV of `sources` to `targets` in every layer; all are read before any is written."""
    for pointer, stride in zip(pointers.tolist(), strides.tolist(), strict=True):
        taken = [ctypes.string_at(pointer + source * stride, stride) for source in sources.tolist()]
        for target, row in zip(targets.tolist(), taken, strict=True):
            ctypes.memmove(pointer + target * stride, row, stride)

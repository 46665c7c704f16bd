"""Decode and extend attention over SGLang's pool: one row after the other, fp32, masks written out in full."""

from typing import Any

import torch
from torch import Tensor


def _attend(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scale: float) -> Tensor:
    """query [q, heads, d], keys and values [k, kv heads, d], seen [q, k] bool -> [q, heads, d]."""
    groups = query.shape[1] // keys.shape[1]
    keys, values = (side.float().repeat_interleave(groups, 1) for side in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys) * scale
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values).to(query.dtype)


def decode_attention_cpu(
    query: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    _key_scale: float,
    _value_scale: float,
    out: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    slots: Tensor,
    _scratch: Tensor,
    slot_table: Tensor,
    rows: Tensor,
    lengths: Tensor,
    scale: float,
    *_unused: Any,
) -> None:
    """One query a row; its key and value, where given, are written to `slots` first."""
    if key is not None and value is not None:
        key_pool[slots] = key.view(-1, *key_pool.shape[1:]).to(key_pool.dtype)
        value_pool[slots] = value.view(-1, *value_pool.shape[1:]).to(value_pool.dtype)
    for index, length in enumerate(lengths.tolist()):
        places = slot_table[rows[index], :length].long()
        seen = torch.ones(1, length, dtype=torch.bool)
        out[index : index + 1] = _attend(query[index : index + 1], key_pool[places], value_pool[places], seen, scale)


def extend_attention_cpu(
    query: Tensor,
    _key: Tensor,
    _value: Tensor,
    out: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    _key_scale: float,
    _value_scale: float,
    slot_table: Tensor,
    rows: Tensor,
    lengths: Tensor,
    counts: Tensor,
    starts: Tensor,
    _most: int,
    scale: float,
    _cap: float,
    _is_cross: bool,
    _window: int,
    _encoder_lengths: Tensor | None,
    _sinks: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    """Several queries a row, whose keys are in the pool already; `tree_mask` [rows * n * n] among the queries."""
    for index, (length, count, start) in enumerate(
        zip(lengths.tolist(), counts.tolist(), starts.tolist(), strict=True)
    ):
        seen = torch.ones(count, length, dtype=torch.bool)
        if tree_mask is not None:
            size = count * count
            seen[:, length - count :] = tree_mask.view(-1)[index * size : (index + 1) * size].view(count, count).bool()
        elif is_causal:
            seen[:, length - count :] = torch.ones(count, count, dtype=torch.bool).tril()
        places, own = slot_table[rows[index], :length].long(), slice(start, start + count)
        out[own] = _attend(query[own], key_pool[places], value_pool[places], seen, scale)

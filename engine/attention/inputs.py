"""The inputs of an attention backend for a pass: queries, pages, and the mask."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a backend that compiles or allocates must know before its first pass."""

    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    dtype: torch.dtype
    """The dtype of queries, keys and values."""
    device: torch.device


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """A ragged batch over paged KV; row r has the queries `qo_indptr[r] .. qo_indptr[r + 1]` and its own pages.

    Query i of a row sees position p iff p < prefix_lens[row] or, with t = p - prefix_lens[row], iff t <= i (without
    words) or `t < 64 and (words >> t) & 1` (with words); a node's word includes the node itself. The page lists may
    cover more positions than a row has: the host plans with an upper bound and the mask hides the rest.
    """

    qo_indptr: Tensor
    """[rows + 1] int32, on the host: the scheduler fixed the counts."""
    kv_indptr: Tensor
    """[rows + 1] int32, on the host: where each row's pages begin in `kv_indices`."""
    kv_indices: Tensor
    """[pages] int32, on the device."""
    last_page_len: Tensor
    """[rows] int32: positions planned in each row's last page."""
    prefix_lens: Tensor
    """[rows] int64, on the device: the true number of positions before the row's queries."""
    words: Tensor | None
    """[queries] int64, on the device: ancestor words; None means causal."""
    page_size: int
    exact: bool = False
    """Each row's pages cover exactly its prefix and its queries, as those of a prefill do."""
    held: Any = None
    """The plan that a graph was captured with: passes use it (`Attention.see` with these words) and make no other."""


@dataclass(frozen=True, slots=True)
class FixedPages:
    """The page lists of a recording's rows, on the device at fixed addresses: filled anew before each replay, and read
    by all passes of a step.
    """

    kv_indptr: Tensor
    """[rows + 1] int32"""
    last_page_len: Tensor
    """[rows] int32"""
    kv_indices: Tensor
    """[pages] int32: as many as the rows may have."""

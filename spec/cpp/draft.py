"""Drafting in C++ (engine/cpp/draft.cpp): all levels of a step in one call, for a head whose guesses are ranked without
noise and without filters.
"""

import ctypes
import math
from ctypes import c_bool, c_float, c_long, c_void_p

import torch
from torch import Tensor

from engine.attention import planned_for
from engine.attention.cpp import addresses_of
from engine.batch import attention_inputs
from engine.cpp.library import LANES, library
from engine.cpp.stack import Matrix, Norm, held_of, norm_at
from engine.row_tables import RowTables
from spec import draft as twins
from spec.draft import Growth, Roots
from spec.head import Head
from spec.ranking import Ranking
from spec.tree import Candidates, candidate_count


class _Head(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("layers", "rotations", "embeddings", "mapping", "pool")),
        ("norm", Norm),
        ("output", Matrix),
        *((n, c_long) for n in ("count", "hidden", "heads", "kv_heads", "dim", "page_size", "layer_bytes")),
        *((name, c_bool) for name in ("normed_residual", "norm_output", "halves")),
    )


class _Roots(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("owners", "lengths", "tokens", "seeds", "temperatures")),
        *((name, c_void_p) for name in ("table", "kv_indptr", "pages")),
        *((name, c_long) for name in ("rows", "per_row")),
    )


def draft_chain(head: Head, tables: RowTables, roots: Roots, growth: Growth, ranking: Ranking) -> Tensor:
    given = _given(head, tables, roots, ranking, 1)
    if given is None:
        return twins.draft_chain.twin(head, tables, roots, growth, ranking)
    tokens = torch.empty(roots.tokens.numel(), growth.depth + 1, dtype=torch.int64)
    floor = -math.inf if growth.confidence is None else growth.confidence.floor
    levels = library().drafted_chain(
        tokens.data_ptr(), ctypes.byref(head.held), ctypes.byref(given.struct), growth.depth, floor
    )
    return tokens[:, : levels + 1]


def draft_tree(head: Head, tables: RowTables, roots: Roots, growth: Growth, ranking: Ranking) -> Candidates:
    rows, depth, topk = roots.tokens.numel(), growth.depth, min(growth.topk, head.config.draft_vocabulary)
    given = _given(head, tables, roots, ranking, topk)
    if given is None:
        return twins.draft_tree.twin(head, tables, roots, growth, ranking)
    total = candidate_count(topk, depth)
    tokens, parents = torch.empty(2, rows, total, dtype=torch.int64).unbind()
    scores = torch.empty(rows, total)
    heats = (c_float * depth)(*(growth.edge_temperature(level) for level in range(1, depth + 1)))
    library().drafted_tree(
        tokens.data_ptr(),
        scores.data_ptr(),
        parents.data_ptr(),
        ctypes.byref(head.held),
        ctypes.byref(given.struct),
        heats,
        depth,
        topk,
        total,
    )
    widths = [1, topk, *[topk * topk] * (depth - 1)]
    depths = torch.arange(depth + 1).repeat_interleave(torch.tensor(widths))
    return Candidates(tokens, scores, parents, depths, depth)


class _Given:
    """Roots as the kernel reads them, and what its addresses point at."""

    def __init__(self, struct: _Roots, *kept: object) -> None:
        self.struct = struct
        self._kept = kept


def _given(head: Head, tables: RowTables, roots: Roots, ranking: Ranking, topk: int) -> _Given | None:
    """None where the call cannot be made."""
    rows = roots.tokens.numel()
    if ranking.noise is not None or ranking.filters is not None or rows * topk > held_of(head.weights.stack).most:
        return None
    if head.held is None:
        head.held = _held(head) or ()
    planned = planned_for(
        head.attention,
        attention_inputs(tables, roots.owners, roots.lengths, roots.covered, torch.arange(rows + 1, dtype=torch.int32)),
    )
    addresses = addresses_of(planned)
    if not head.held or addresses is None:
        return None
    (_, kv_indptr, pages, _, _), _, _ = addresses
    seeds, heat = roots.seeds.float().contiguous(), ranking.temperatures
    owners, lengths, tokens = roots.owners.contiguous(), roots.lengths.contiguous(), roots.tokens.contiguous()
    struct = _Roots(
        owners.data_ptr(),
        lengths.data_ptr(),
        tokens.data_ptr(),
        seeds.data_ptr(),
        None if heat is None else heat.data_ptr(),
        tables.pages.data_ptr(),
        kv_indptr,
        pages,
        rows,
        tables.pages.shape[1],
    )
    return _Given(struct, planned, seeds, heat, owners, lengths, tokens)


def _held(head: Head) -> _Head | None:
    weights, config, pool = head.weights, head.config, head.pool.slots(0)
    held, output = held_of(weights.stack), weights.output.addresses(1)
    plain = pool.dtype in (torch.float32, torch.bfloat16) and weights.embeddings.dtype == pool.dtype
    if held.layers is None or output is None or not plain or config.hidden % LANES:
        return None
    mapping = weights.draft_to_target
    return _Head(
        ctypes.addressof(held.layers),
        head.rotations.data_ptr(),
        weights.embeddings.data_ptr(),
        None if mapping is None else mapping.data_ptr(),
        pool.data_ptr(),
        norm_at(weights.norm),
        Matrix(*output, config.draft_vocabulary, config.hidden),
        len(weights.stack.layers),
        config.hidden,
        config.heads,
        config.kv_heads,
        config.head_dim,
        head.pool.page_size,
        pool.numel() * pool.element_size(),
        weights.stack.normed_residual,
        config.norm_output,
        pool.dtype is torch.bfloat16,
    )

"""Drafting in C++ (engine/cpp/draft.cpp): all levels of a step in one call, for a head whose guesses are ranked without
noise, and those of trees without filters.
"""

import ctypes
import math
from ctypes import c_float, c_long, c_void_p

import torch
from torch import Tensor

from engine.cpp.library import library
from engine.cpp.model import tables_of
from engine.row_tables import RowTables
from spec import draft as twins
from spec.cpp.head import HeldHead, held_head
from spec.draft import Growth, Roots
from spec.head import Head
from spec.ranking import Ranking
from spec.tree import Candidates, candidate_count


class _Roots(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("owners", "lengths")),
        ("rows", c_long),
        *((name, c_void_p) for name in ("tokens", "seeds", "temperatures")),
    )


def draft_chain(head: Head, tables: RowTables, roots: Roots, growth: Growth, ranking: Ranking) -> Tensor:
    given = _given(head, tables, roots, ranking, 1)
    if given is None:
        return twins.draft_chain.twin(head, tables, roots, growth, ranking)
    tokens = torch.empty(roots.tokens.numel(), growth.depth + 1, dtype=torch.int64)
    floor = -math.inf if growth.confidence is None else growth.confidence.floor
    levels = library().drafted_chain(tokens.data_ptr(), *given.addresses, growth.depth, floor)
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
        *given.addresses,
        heats,
        depth,
        topk,
        total,
    )
    widths = [1, topk, *[topk * topk] * (depth - 1)]
    depths = torch.arange(depth + 1).repeat_interleave(torch.tensor(widths))
    return Candidates(tokens, scores, parents, depths, depth)


class _Given:
    """Head, tables and roots as the kernel reads them, and what its addresses point at."""

    def __init__(self, head: HeldHead, tables: RowTables, roots: _Roots, *kept: object) -> None:
        self.addresses = ctypes.byref(head.struct), ctypes.byref(tables_of(tables)), ctypes.byref(roots)
        self._kept = kept


def _given(head: Head, tables: RowTables, roots: Roots, ranking: Ranking, topk: int) -> _Given | None:
    """None where the call cannot be made."""
    rows, held = roots.tokens.numel(), held_head(head)
    told_apart = ranking.noise is not None or (ranking.filters is not None and topk > 1)
    if held is None or told_apart or rows * topk > held.body.most:
        return None
    seeds, heat = roots.seeds.float().contiguous(), ranking.temperatures
    owners, lengths, tokens = roots.owners.contiguous(), roots.lengths.contiguous(), roots.tokens.contiguous()
    struct = _Roots(
        owners.data_ptr(),
        lengths.data_ptr(),
        rows,
        tokens.data_ptr(),
        seeds.data_ptr(),
        None if heat is None else heat.data_ptr(),
    )
    return _Given(held, tables, struct, seeds, heat, owners, lengths, tokens)

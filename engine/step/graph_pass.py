"""Attention of a bucket's recordings: the pages of its rows at fixed addresses, and a plan for each pass.

The host stages a step's row arrays with everything else, in one copy, and launches one copy of the page list, which all
passes of the step read. Only a plan that splits long rows needs a copy of its own, where page counts have changed.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.step import Ints
from aerie.engine.attention import Capturable
from aerie.engine.attention.inputs import FixedPages
from aerie.engine.step.batch import Cover, attention_inputs, cover, page_list
from aerie.engine.step.state import DeviceState

SHORT = 512
"""Positions of a row up to which merging its splits costs more than splitting saves."""
_FEW = 8
"""Rows up to which recordings for short rows are made: more are rarely all short."""


class GraphPages:
    """The pages of a bucket's rows. Call `stage` right after `fix_rows`, so that its arrays lie where they lay before,
    and `fill` once the tables hold the step's pages.
    """

    def __init__(self, state: DeviceState, rows: int) -> None:
        self._tables = tables = state.tables
        self._transfer = state.transfer
        self.rows = rows
        self.prefix_lens = torch.zeros(rows, dtype=torch.int64, device=state.device)
        """[rows] true lengths, which a recording writes and all its passes read."""
        self._kv_indices = torch.zeros(rows * tables.pages.shape[1], dtype=torch.int32, device=state.device)

    def stage(self, positions: Ints) -> Cover:
        """positions [rows] that the rows' pages cover in this step."""
        return cover(positions, self._tables.page_size, self._transfer, fixed=True)

    def fill(self, rows: Tensor, covered: Cover) -> None:
        """rows [rows] of the tables."""
        own = page_list(self._tables, rows, covered)
        self._kv_indices[: own.numel()].copy_(own)

    def fixed(self, covered: Cover) -> FixedPages:
        assert covered.on_device is not None
        return FixedPages(*covered.on_device, self._kv_indices)


class GraphPass:
    """Attention of one pass of a bucket: planned once for its shape, renewed by the host before every replay."""

    def __init__(
        self, attention: Capturable, state: DeviceState, pages: GraphPages, staged: Cover, queries: int, *, split: bool
    ) -> None:
        """`queries` per row; `staged` is what `pages` staged last. `split` allows attention to split long rows."""
        self._attention = attention
        dummies = torch.full((pages.rows,), state.tables.dummy_row, device=state.device)
        indptr = torch.arange(0, pages.rows * queries + 1, queries, dtype=torch.int32)
        inputs = attention_inputs(state.tables, dummies, pages.prefix_lens, staged, indptr)
        self._held = attention.hold(inputs, pages.fixed(staged), split=split)
        self.cover = replace(staged, widest=0, inside=None, held=self._held)

    def renew(self, covered: Cover) -> None:
        self._attention.renew(self._held, covered.kv_indptr)


def lengths_apart(attention: Capturable, rows: int, queries: int) -> tuple[bool, ...]:
    """For each recording of a pass whether it is for short rows alone: those are not split, and none merges."""
    return (False, True) if rows <= _FEW and attention.splits(rows, queries) else (False,)


def all_short(positions: Ints) -> bool:
    return int(positions.max()) <= SHORT


def dummy_positions(rows: int, reach: int) -> Ints:
    """[rows] what surplus rows cover: `reach` positions past length 0."""
    return np.full(rows, reach, dtype=np.int32)

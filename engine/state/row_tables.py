"""What the device stores for each row until its next owner: pages, sampling, limits. Index `rows` is the dummy row.

Filled from `RowStarts` and `PageUpdates`, so that a plan carries only what changed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.sampling import COLUMNS, MAX_STOP_IDS
from aerie.contracts.step import DUMMY_PAGE, PageUpdates, RowStarts
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.state.edit_tables import EditTables
from aerie.engine.state.transfer import Transfer

_NEVER = 2**30
_DTYPES: dict[type[Any], torch.dtype] = {np.float32: torch.float32, np.int32: torch.int32}


class RowTables:
    """Device tables [rows + 1, ...]. `pages` [rows + 1, pages per row] int32 points to the dummy page where a row has
    none; `sampling` has the columns of `contracts.sampling.COLUMNS` by name.
    """

    def __init__(
        self,
        rows: int,
        pages_per_row: int,
        page_size: int,
        device: torch.device | str = "cpu",
        kernels: Kernels = REFERENCES,
        edits: EditTables | None = None,
    ) -> None:
        """Without `edits`, no row edits logits."""
        self.page_size = page_size
        self.dummy_row = rows
        size = rows + 1
        self.pages = torch.full((size, pages_per_row), DUMMY_PAGE, dtype=torch.int32, device=device)
        self.noise_keys = torch.zeros(size, dtype=torch.int64, device=device)
        self.sampling = {
            name: torch.full((size,), field.neutral, dtype=_DTYPES[field.dtype], device=device)
            for name, field in COLUMNS.items()
        }
        self.sampling["temperature"].zero_()  # rows without an owner are greedy
        self.limits = torch.full((size,), _NEVER, dtype=torch.int32, device=device)
        self.min_lengths = torch.zeros(size, dtype=torch.int32, device=device)
        self.stop_ids = torch.full((size, MAX_STOP_IDS), -1, dtype=torch.int64, device=device)
        self.edits = EditTables(rows, 0, 0, device) if edits is None else edits
        self._slots = kernels[slots]

    def staged_start(self, starts: RowStarts, transfer: Transfer) -> Callable[[], None]:
        """Stages rows for new owners. The returned function empties their page tables and sets their constants."""
        rows = transfer.put(starts.rows)
        constants = [
            (table, transfer.put(values, kind))
            for table, values, kind in (
                (self.noise_keys, starts.noise_keys, np.int64),
                *((self.sampling[name], starts.sampling[name], field.dtype) for name, field in COLUMNS.items()),
                (self.limits, starts.limits, np.int32),
                (self.min_lengths, starts.min_lengths, np.int32),
                (self.stop_ids, starts.stop_ids, np.int64),
            )
        ]
        edit = self.edits.staged_start(starts.edits, rows, transfer)

        def write() -> None:
            self.pages.index_fill_(0, rows, DUMMY_PAGE)
            edit()
            for table, values in constants:
                table.index_copy_(0, rows, values)

        return write

    def staged_pages(self, updates: PageUpdates, transfer: Transfer) -> Callable[[], None]:
        rows, slots = transfer.put(updates.rows), transfer.put(updates.slots)  # [updates] each, as pages
        pages = transfer.put(updates.pages, np.int32)

        def write() -> None:
            self.pages[rows, slots] = pages

        return write

    def slots(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Pool slots [n] int64 of positions [n] of rows [n]."""
        return self._slots(self.pages, self.page_size, rows, positions)


def slots(pages: Tensor, page_size: int, rows: Tensor, positions: Tensor) -> Tensor:
    """pages [rows, pages per row] int32 -> pool slots [n] int64 of positions [n] of rows [n]."""
    places = rows * pages.shape[1] + torch.div(positions, page_size, rounding_mode="floor")  # [n]
    return pages.view(-1).index_select(0, places) * page_size + positions.remainder(page_size)

"""What the device knows of each row until its next owner: pages, sampling, limits. Index `rows` is the dummy row.

Filled from `RowStarts` and `PageUpdates`, so that a plan carries what changed and nothing else.
"""

import torch
from torch import Tensor

from contracts.sampling import MAX_STOP_IDS
from contracts.step import DUMMY_PAGE, PageUpdates, RowStarts

_NEVER = 2**30


class RowTables:
    """Device tables [rows + 1, ...]. `pages` [rows + 1, pages per row] int32 points at the dummy page where a row has
    none.
    """

    def __init__(self, rows: int, pages_per_row: int, page_size: int, device: torch.device | str = "cpu") -> None:
        self.page_size = page_size
        self.dummy_row = rows
        self._device = torch.device(device)
        size = rows + 1
        self.pages = torch.full((size, pages_per_row), DUMMY_PAGE, dtype=torch.int32, device=device)
        self.noise_keys = torch.zeros(size, dtype=torch.int64, device=device)
        self.temperatures = torch.zeros(size, dtype=torch.float32, device=device)
        self.top_ks = torch.zeros(size, dtype=torch.int32, device=device)
        self.top_ps = torch.ones(size, dtype=torch.float32, device=device)
        self.min_ps = torch.zeros(size, dtype=torch.float32, device=device)
        self.limits = torch.full((size,), _NEVER, dtype=torch.int32, device=device)
        self.min_lengths = torch.zeros(size, dtype=torch.int32, device=device)
        self.stop_ids = torch.full((size, MAX_STOP_IDS), -1, dtype=torch.int64, device=device)

    def start(self, starts: RowStarts) -> None:
        """Gives rows to new owners: their page tables are emptied and their constants set."""
        rows = self._on_device(starts.rows).long()
        self.pages[rows] = DUMMY_PAGE
        for table, values in (
            (self.noise_keys, starts.noise_keys),
            (self.temperatures, starts.temperatures),
            (self.top_ks, starts.top_ks),
            (self.top_ps, starts.top_ps),
            (self.min_ps, starts.min_ps),
            (self.limits, starts.limits),
            (self.min_lengths, starts.min_lengths),
            (self.stop_ids, starts.stop_ids),
        ):
            table[rows] = self._on_device(values).to(table.dtype)

    def update_pages(self, updates: PageUpdates) -> None:
        rows, slots = self._on_device(updates.rows).long(), self._on_device(updates.slots).long()
        self.pages[rows, slots] = self._on_device(updates.pages)

    def slots(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Pool slots [n] int64 of positions [n] of rows [n]."""
        pages = self.pages[rows, torch.div(positions, self.page_size, rounding_mode="floor")]
        return pages.long() * self.page_size + positions.remainder(self.page_size)

    def _on_device(self, values: object) -> Tensor:
        return torch.as_tensor(values, device=self._device)

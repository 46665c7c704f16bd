"""The device side of the FutureMap: what one step leaves for the next, before the host has seen it.

Every value has two generations per row. A plan names the generation that each of its rows reads and the step writes
the other
one, so rows that are absent from a step keep theirs, and a step in flight never overwrites what a later one will read.
"""

import torch
from torch import Tensor

_POISON_TOKEN = -1
_POISON_LENGTH = 2**29


class FutureMap:
    """Tables [2, rows + 1, ...]; the last row is the dummy. In poison mode a read spoils what it read."""

    def __init__(
        self,
        rows: int,
        *,
        seed_width: int = 0,
        seed_dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        poison: bool = False,
    ) -> None:
        self._poison = poison
        self.bonus = torch.zeros(2, rows + 1, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(2, rows + 1, dtype=torch.int64, device=device)
        self.done = torch.zeros(2, rows + 1, dtype=torch.bool, device=device)
        self.seeds = torch.zeros(2, rows + 1, seed_width, dtype=seed_dtype, device=device)
        self._rows = rows + 1
        self._flat = tuple(table.flatten(0, 1) for table in (self.bonus, self.lengths, self.done, self.seeds))

    def read(self, turns: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """turns, rows [n] int64 -> bonus [n], length [n], done [n], draft seed [n, seed_width]."""
        places = turns * self._rows + rows
        bonus, lengths, done, seeds = (table.index_select(0, places) for table in self._flat)
        if self._poison:
            self.bonus[turns, rows] = _POISON_TOKEN
            self.lengths[turns, rows] = _POISON_LENGTH
            self.seeds[turns, rows] = torch.nan
        return bonus, lengths, done, seeds

    def publish(
        self, turns: Tensor, rows: Tensor, *, bonus: Tensor, lengths: Tensor, done: Tensor, seeds: Tensor | None
    ) -> None:
        """Writes the generation `turns` of the rows; without seeds theirs are left as they are."""
        places = turns * self._rows + rows
        for table, values in zip(self._flat, (bonus, lengths, done, seeds), strict=True):
            if values is not None:
                table.index_copy_(0, places, values.to(table.dtype))

"""The device side of the FutureMap: what one step leaves for the next, before the host has seen it.

Every value has two generations per row. A plan names the generation that each of its rows reads; the step writes the
other one. So rows that are absent from a step keep theirs, and a step in flight never overwrites what a later one will
read.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from aerie.engine.bindings import REFERENCES, Kernels

_POISON_TOKEN = -1
_POISON_LENGTH = 2**29


class Future(NamedTuple):
    """One generation of rows [n], or the tables [2 * (rows + 1), ...] of all rows."""

    bonus: Tensor
    lengths: Tensor
    done: Tensor
    """[n], as `bonus` and `lengths`."""
    seeds: Tensor
    """[n, seed_width]"""


def take(tables: Future, generations: Tensor, rows: Tensor) -> Future:
    """generations, rows [n] int64 -> copies of their values."""
    places = generations * (tables.bonus.shape[0] // 2) + rows
    return Future(*(table.index_select(0, places) for table in tables))


def publish(
    tables: Future,
    generations: Tensor,
    rows: Tensor,
    bonus: Tensor,
    lengths: Tensor,
    done: Tensor,
    seeds: Tensor | None,
) -> None:
    """Writes generation `generations` [n] of `rows` [n]; values have the shapes of `Future`. Without seeds, the stored
    seeds stay as they are.
    """
    places = generations * (tables.bonus.shape[0] // 2) + rows
    for table, values in zip(tables, (bonus, lengths, done, seeds), strict=True):
        if values is not None:
            table.index_copy_(0, places, values.to(table.dtype))


class FutureMap:
    """Tables [2, rows + 1, ...]; the last row is the dummy. In poison mode a read overwrites what it read."""

    def __init__(
        self,
        rows: int,
        *,
        seed_width: int = 0,
        seed_dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        poison: bool = False,
        kernels: Kernels = REFERENCES,
    ) -> None:
        self.poison = poison
        self.bonus = torch.zeros(2, rows + 1, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(2, rows + 1, dtype=torch.int64, device=device)
        self.done = torch.zeros(2, rows + 1, dtype=torch.bool, device=device)
        self.seeds = torch.zeros(2, rows + 1, seed_width, dtype=seed_dtype, device=device)
        self._take, self._publish = kernels[take], kernels[publish]
        self._tables = Future(*(table.flatten(0, 1) for table in (self.bonus, self.lengths, self.done, self.seeds)))

    def read(self, generations: Tensor, rows: Tensor) -> Future:
        """generations, rows [n] int64"""
        found = self._take(self._tables, generations, rows)
        if self.poison:
            places = (
                generations * (self._tables.bonus.shape[0] // 2) + rows
            )  # index_fill_: a kernel's constant, no copy
            for table, value in (
                (self._tables.bonus, _POISON_TOKEN),
                (self._tables.lengths, _POISON_LENGTH),
                (self._tables.seeds, math.nan),
            ):
                table.index_fill_(0, places, value)
        return found

    def publish(
        self, generations: Tensor, rows: Tensor, *, bonus: Tensor, lengths: Tensor, done: Tensor, seeds: Tensor | None
    ) -> None:
        self._publish(self._tables, generations, rows, bonus, lengths, done, seeds)

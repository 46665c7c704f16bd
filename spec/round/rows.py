"""Which rows of a step the drafter has been extended with: they draft, and are extended again. Usually all of them.

A row that began without the drafter stays without it, so a step may have rows of both kinds.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from aerie.contracts.step import Bools, Ints
from aerie.engine.state.transfer import Transfer
from aerie.spec.trees.tree import Tree, with_plain_rows

Numbers = TypeVar("Numbers", bound=NDArray[Any])


class DraftedRows(Protocol):
    """The r of a step's R rows that draft."""

    @property
    def every(self) -> bool:
        """Whether r = R."""

    def of(self, values: Numbers) -> Numbers:
        """On the host: [R, ...] -> [r, ...]"""

    def pick(self, values: Tensor) -> Tensor:
        """[R, ...] -> [r, ...]"""

    def spread(self, values: Tensor, rows: int) -> Tensor:
        """[r, ...] -> [R, ...] for R = `rows`, zero in the other rows."""

    def spread_tree(self, tree: Tree, roots: Tensor) -> Tree:
        """A tree of r rows -> of R rows with roots [R]; the other rows have the root alone."""


@dataclass(frozen=True, slots=True)
class EveryRow:
    every: ClassVar[bool] = True

    def of(self, values: Numbers) -> Numbers:
        return values

    def pick(self, values: Tensor) -> Tensor:
        return values

    def spread(self, values: Tensor, rows: int) -> Tensor:
        return values

    def spread_tree(self, tree: Tree, roots: Tensor) -> Tree:
        return tree


@dataclass(frozen=True, slots=True)
class SomeRows:
    host: Ints
    """[r] indices into the step's rows."""
    device: Tensor
    """The same indices on the device, int64."""
    every: ClassVar[bool] = False

    def of(self, values: Numbers) -> Numbers:
        return cast(Numbers, values[self.host])

    def pick(self, values: Tensor) -> Tensor:
        return values.index_select(0, self.device)

    def spread(self, values: Tensor, rows: int) -> Tensor:
        return values.new_zeros(rows, *values.shape[1:]).index_copy_(0, self.device, values)

    def spread_tree(self, tree: Tree, roots: Tensor) -> Tree:
        return with_plain_rows(tree, self.device, roots)


def drafted_rows(drafting: Bools, transfer: Transfer) -> DraftedRows:
    """The rows [R] that `drafting` marks."""
    if drafting.all():
        return EveryRow()
    host = np.flatnonzero(drafting)
    return SomeRows(host.astype(np.int32), transfer.put(host))

"""How the nodes of R rows lie in the verifying pass: packed, so that it has exactly the sum of their counts."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from aerie.contracts.step import Ints
from aerie.engine.state.transfer import Transfer
from aerie.engine.step.batch import Layout, layout


class Nodes(Protocol):
    """T nodes of R rows, at most M a row."""

    @property
    def layout(self) -> Layout: ...

    def pack(self, *values: Tensor) -> list[Tensor]:
        """[R, M] each -> [T] each."""

    def unpack(self, values: Tensor) -> Tensor:
        """[T] -> [R, M]; padding repeats the row's last node."""


@dataclass(frozen=True, slots=True)
class EqualNodes:
    """Every row has M nodes."""

    layout: Layout

    def pack(self, *values: Tensor) -> list[Tensor]:
        return [each.reshape(-1) for each in values]

    def unpack(self, values: Tensor) -> Tensor:
        return values.view(self.layout.counts.size, -1)


@dataclass(frozen=True, slots=True)
class RaggedNodes:
    """Rows have different counts."""

    layout: Layout
    padded: Tensor
    """[R, M] index of the flat node at each place, the row's last node in padding."""

    def pack(self, *values: Tensor) -> list[Tensor]:
        lay = self.layout
        flat = lay.owners * lay.width + lay.places  # [T]
        return [each.reshape(-1).index_select(0, flat) for each in values]

    def unpack(self, values: Tensor) -> Tensor:
        return values[self.padded]


def lay_nodes(counts: Ints, transfer: Transfer) -> Nodes:
    """Lays out the nodes of rows with counts [R]."""
    lay = layout(counts, transfer)
    if lay.uniform:
        return EqualNodes(lay)
    firsts = np.cumsum(counts) - counts  # [R]
    return RaggedNodes(lay, transfer.put(np.minimum(np.arange(lay.width), counts[:, None] - 1) + firsts[:, None]))

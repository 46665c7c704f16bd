"""Holds a pass's choices to the grammars of its rows. Called right after `choose`, on devices whose host may look."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.step import Bools, Ints, Longs
from aerie.engine.grammars.guides import Guides

Among = Callable[[int, Tensor], Tensor]
"""The target's choice [1] at a node of the pass among the tokens [1, V] that are allowed."""

_NO_PARENT: Longs = np.zeros(1, dtype=np.int64)


def hold(guides: Guides, chosen: Tensor, among: Among) -> None:
    """Of a pass with one choice a row: overwrites chosen [rows]."""
    values = chosen.numpy()
    for place in guides.places:
        guides.walk(place, _NO_PARENT, _NO_PARENT, values[place : place + 1], _of(place, among))


def hold_trees(guides: Guides, chosen: Tensor, counts: Ints, tokens: Tensor, parents: Tensor, among: Among) -> None:
    """Of a pass over trees: overwrites chosen [T] along each row's path. counts [rows]; tokens, parents [rows, M]."""
    values, firsts = chosen.numpy(), np.cumsum(counts) - counts  # [T], [rows]
    own_tokens, own_parents = tokens.numpy(), parents.numpy()
    for place in guides.places:
        first, count = int(firsts[place]), int(counts[place])
        guides.walk(
            place,
            own_tokens[place, :count],
            own_parents[place, :count],
            values[first : first + count],
            _of(first, among),
        )


def _of(first: int, among: Among) -> Callable[[int, Bools], int]:
    """`among` for the nodes of the row that begins at `first`."""

    def chosen(node: int, allowed: Bools) -> int:
        return int(among(first + node, torch.from_numpy(allowed)[None]))

    return chosen

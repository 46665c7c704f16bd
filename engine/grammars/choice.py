"""Holds a pass's choices to the grammars of its rows. Called right after `choose`, on devices whose host may look."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.step import Ints
from aerie.engine.grammars.guides import Chosen, Guides
from aerie.engine.sampling.masks import Masks

Among = Callable[[int, Masks], Tensor]
"""The target's choice [1] at a node of the pass under its mask."""

_ROOT = [0]


def hold(guides: Guides, chosen: Tensor, among: Among) -> None:
    """Of a pass with one choice a row: overwrites chosen [rows]."""
    values = chosen.numpy()
    for place in guides.places:
        held = [int(values[place])]
        guides.walk(place, _ROOT, _ROOT, held, _of(place, among))
        values[place] = held[0]


def hold_trees(guides: Guides, chosen: Tensor, counts: Ints, tokens: Tensor, parents: Tensor, among: Among) -> None:
    """Of a pass over trees: overwrites chosen [T] along each row's path. counts [rows]; tokens, parents [rows, M]."""
    values, firsts = chosen.numpy(), np.cumsum(counts) - counts  # [T], [rows]
    own_tokens, own_parents = tokens.numpy(), parents.numpy()
    for place in guides.places:
        first, count = int(firsts[place]), int(counts[place])
        held = values[first : first + count].tolist()
        own = own_tokens[place, :count].tolist(), own_parents[place, :count].tolist()
        guides.walk(place, *own, held, _of(first, among))
        values[first : first + count] = held


def _of(first: int, among: Among) -> Chosen:
    """`among` for the nodes of the row that begins at `first`."""

    def chosen(node: int, allowed: bytes) -> int:
        words = torch.from_numpy(np.frombuffer(bytearray(allowed), dtype=np.int32))[None]  # torch wants writable bytes
        return int(among(first + node, Masks(words, torch.zeros(1, dtype=torch.int64))))

    return chosen

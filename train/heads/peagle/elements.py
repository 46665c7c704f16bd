"""The training elements (anchor a, depth d) of a P-EAGLE head: which are kept, and which attend to which.

Element (a, 0) is pair a: the tap of column a and the token after it. Element (a, d) is the d-th mask slot after it, at
RoPE position a + d, and predicts column a + d + 2, exactly as slot d does in serving when pair a is the last. Called by
`peagle_loss`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.train.heads.blocks import Blocks, arranged, numbered, rounded
from aerie.train.heads.loss import loss_mask


@dataclass(frozen=True, slots=True)
class Drop:
    """Conditional drop (P-EAGLE): only a share of the anchors kept at a depth is kept at the next.

    Depth d keeps a share of max(rate^d, floor); rate 1 keeps all.
    """

    depth: int
    rate: float
    floor: float


@dataclass(frozen=True, slots=True)
class Elements:
    """[rows, elements] each, a round number; a row's own elements come first, and padding repeats none of them."""

    anchors: Tensor
    depths: Tensor
    real: Tensor
    """False for padding."""

    @property
    def positions(self) -> Tensor:
        return self.anchors + self.depths


def kept_anchors(answer: Tensor, drop: Drop, generator: torch.Generator, documents: Tensor | None = None) -> Tensor:
    """[rows, depth, columns] bool: which anchors are kept at each depth.

    Depth 0 keeps every column, as context for all depths. Depth d > 0 keeps anchors whose draft of that depth is inside
    an answer, fewer at greater depths. One draw per anchor decides all its depths, so an anchor kept at a depth is kept
    at every smaller one.
    """
    draws = torch.rand(answer.shape, generator=generator, device=generator.device).to(answer.device)  # [rows, columns]
    kept = [torch.ones_like(answer)]
    for depth in range(1, drop.depth):
        kept.append(loss_mask(answer, depth, documents) & (draws < max(drop.rate**depth, drop.floor)))
    return torch.stack(kept, 1)


def elements(kept: Tensor) -> Elements:
    """kept [rows, depth, columns] -> its elements, by depth and then by anchor."""
    flat = kept.flatten(1)  # [rows, depth * columns]
    widest = rounded(int(flat.sum(1).max()))
    order = flat.int().sort(dim=1, descending=True, stable=True).indices[:, :widest]  # [rows, elements]
    columns = kept.shape[2]
    return Elements(order % columns, order // columns, flat.gather(1, order))


def blocks(found: Elements, columns: int, dtype: torch.dtype, documents: Tensor | None = None) -> Blocks:
    """Who attends to whom, over the elements of all rows one after another: q sees k iff k is a pair at or before q's
    anchor, or a slot of q's own anchor no deeper than q; never across documents [rows, columns], never padding.

    Causal attention in serving sees the same: all pairs, then the slots before.
    """
    rows = torch.arange(len(found.anchors), device=found.anchors.device)[:, None]
    numbers = numbered(rows.expand(-1, columns) if documents is None else documents)  # [rows * columns]
    own = numbers[(found.anchors + columns * rows).flatten()]  # [rows * elements], as anchors, depths and real
    anchors, depths, real = found.anchors.flatten(), found.depths.flatten(), found.real.flatten()

    def seen(q: Tensor, k: Tensor) -> Tensor:
        pair = (depths[k] == 0) & (anchors[k] <= anchors[q])
        slot = (anchors[k] == anchors[q]) & (depths[k] <= depths[q])
        return ((pair | slot) & real[k]) | (q == k)  # padding sees itself, so that no softmax is empty

    return arranged(own, own, seen, dtype)


def segments(kept: Tensor, limit: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Sequence partitioning: splits sequences that do not fit in one pass into parts of at most about `limit` elements
    a row.

    Yields (kept [rows, depth, columns] of the part, anchors [columns] that count in it). All depths of an anchor are in
    one part, with every pair before them as context, so the losses of the parts add up to the whole's, and so do the
    gradients.
    """
    columns = kept.shape[2]
    own = kept[:, 1:].sum(1).max(0).values.cumsum(0)  # [columns] slots up to each anchor, of the row that has the most
    begin = 0
    while begin < columns:
        used = own - (own[begin - 1] if begin else 0)
        total = used + torch.arange(1, columns + 1, device=own.device)
        end = max(begin + 1, int((total[begin:] <= limit).sum()) + begin)
        places = torch.arange(columns, device=kept.device)
        answered = (places >= begin) & (places < end)
        part = kept & answered
        part[:, 0] = places < end
        yield part, answered
        begin = end

"""The training elements (anchor a, depth d) of a P-EAGLE head: which are kept, and which attend to which.

Element (a, 0) is pair a: the tap of column a and the token after it. Element (a, d) is the d-th mask slot after it, at
RoPE position a + d, and predicts column a + d + 2, exactly as slot d does in serving when pair a is the last. Called by
`peagle_loss`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

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
    """[rows, elements] each; a row's own elements come first, and padding repeats none of them."""

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
    widest = int(flat.sum(1).max())
    order = flat.int().sort(dim=1, descending=True, stable=True).indices[:, :widest]  # [rows, elements]
    columns = kept.shape[2]
    return Elements(order % columns, order // columns, flat.gather(1, order))


def seen(found: Elements, documents: Tensor | None = None) -> Tensor:
    """[rows, elements, elements] bool: q sees k iff k is a pair at or before q's anchor, or a slot of q's own anchor no
    deeper than q; never across documents [rows, columns], never padding.

    Causal attention in serving sees the same: all pairs, then the slots before.
    """
    q_anchor, k_anchor = found.anchors[:, :, None], found.anchors[:, None]  # [rows, elements, 1], [rows, 1, elements]
    q_depth, k_depth = found.depths[:, :, None], found.depths[:, None]
    own = k_anchor == q_anchor  # [rows, elements, elements], as allowed and itself
    allowed = ((k_depth == 0) & (k_anchor <= q_anchor)) | (own & (k_depth <= q_depth))
    if documents is not None:
        number = documents.gather(1, found.anchors)  # [rows, elements]
        allowed &= number[:, :, None] == number[:, None]
    itself = own & (k_depth == q_depth)  # padding sees itself, so that no softmax is empty
    return (allowed & found.real[:, None]) | itself


@dataclass(frozen=True, slots=True)
class Conversation:
    """The elements of one conversation, which attend to each other only."""

    places: Tensor
    """[n] among the elements of all rows, row after row."""
    seen: Tensor
    """[n, n] bool, as the function `seen` gives it."""


def conversations(found: Elements, documents: Tensor | None = None) -> list[Conversation]:
    """Divides the elements among their conversations: attention's work grows with the squares of their sizes, not of
    the row's. Every element is in one.
    """
    divided = []
    for row, anchors in enumerate(found.anchors):
        numbers = torch.zeros_like(anchors) if documents is None else documents[row, anchors]  # [elements]
        for number in numbers.unique():
            places = (numbers == number).nonzero()[:, 0]
            own = Elements(anchors[None, places], found.depths[row, places][None], found.real[row, places][None])
            divided.append(Conversation(places + row * len(anchors), seen(own)[0]))
    return divided


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

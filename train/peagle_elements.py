"""What a P-EAGLE head is trained on: elements (anchor a, depth d), which of them are kept, and who sees whom.

Element (a, 0) is pair a: the tap of column a and the token after it. Element (a, d) is the d-th mask slot after it, at
RoPE position a + d, and predicts column a + d + 2: exactly what serving asks of slot d when pair a is the last. Called
by `peagle_loss`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from train.loss import loss_mask


@dataclass(frozen=True, slots=True)
class Drop:
    """Conditional drop (P-EAGLE): of the anchors kept at a depth, so many are kept at the next.

    Depth d keeps a share of max(rate^d, floor); rate 1 keeps all.
    """

    depth: int
    rate: float
    floor: float


@dataclass(frozen=True, slots=True)
class Elements:
    """[rows, elements] each; a row's own come first, and the others repeat none of them."""

    anchors: Tensor
    depths: Tensor
    real: Tensor
    """Whether the element is one of the row, not padding."""

    @property
    def positions(self) -> Tensor:
        return self.anchors + self.depths


def kept_anchors(answer: Tensor, drop: Drop, generator: torch.Generator, documents: Tensor | None = None) -> Tensor:
    """[rows, depth, columns] bool: depth 0 keeps every column, as the context of all; depth d > 0 keeps anchors whose
    draft of that depth is inside an answer, fewer the deeper.

    One draw an anchor decides all its depths, so whatever is kept at a depth is kept at every smaller one.
    """
    draws = torch.rand(answer.shape, generator=generator, device=generator.device).to(answer.device)
    kept = [torch.ones_like(answer)]
    for depth in range(1, drop.depth):
        kept.append(loss_mask(answer, depth, documents) & (draws < max(drop.rate**depth, drop.floor)))
    return torch.stack(kept, 1)


def elements(kept: Tensor) -> Elements:
    """kept [rows, depth, columns] -> its elements, by depth and then by anchor."""
    flat = kept.flatten(1)
    widest = int(flat.sum(1).max())
    order = flat.int().sort(dim=1, descending=True, stable=True).indices[:, :widest]
    columns = kept.shape[2]
    return Elements(order % columns, order // columns, flat.gather(1, order))


def seen(found: Elements, documents: Tensor | None = None) -> Tensor:
    """[rows, elements, elements] bool: q sees k iff k is a pair at or before q's anchor, or a slot of q's own anchor no
    deeper than q; never across documents [rows, columns], never padding.

    This is what plain causal attention sees in serving: all pairs, then the slots before.
    """
    q_anchor, k_anchor = found.anchors[:, :, None], found.anchors[:, None]
    q_depth, k_depth = found.depths[:, :, None], found.depths[:, None]
    own = k_anchor == q_anchor
    allowed = ((k_depth == 0) & (k_anchor <= q_anchor)) | (own & (k_depth <= q_depth))
    if documents is not None:
        number = documents.gather(1, found.anchors)
        allowed &= number[:, :, None] == number[:, None]
    itself = own & (k_depth == q_depth)  # padding sees itself, so that no softmax is empty
    return (allowed & found.real[:, None]) | itself


def segments(kept: Tensor, limit: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Sequence partitioning: parts of at most about `limit` elements a row, for sequences that do not fit in one pass.

    Yields (kept of the part, anchors [columns] that it answers for). All depths of an anchor are in one part, with
    every pair before them as context; so the parts' losses add up to the whole's, and so do their gradients.
    """
    columns = kept.shape[2]
    own = kept[:, 1:].sum(1).max(0).values.cumsum(0)  # slots up to each anchor, of the row that has most there
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

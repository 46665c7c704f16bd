"""The loss of a P-EAGLE head: all kept elements of a batch in one pass, or in parts whose gradients add up.

There is no recurrence: element (a, d) is judged by the target's distribution after column a + d + 1. Called by
`peagle_run`, by experiments, and, without dropping, for measurement.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.train.heads.blocks import product_dtype
from aerie.train.heads.draft_vocabulary import DraftVocabulary
from aerie.train.heads.loss import Judged, drafted_logits, looked_ahead, loss_mask
from aerie.train.heads.objectives import Objective, soft_cross_entropy
from aerie.train.heads.peagle.elements import Drop, Elements, blocks, elements, kept_anchors, segments
from aerie.train.heads.peagle.head import ParallelHead
from aerie.train.heads.unroll import turned


@dataclass(frozen=True, slots=True)
class Lesson:
    """A batch with the target's outputs. `documents` numbers packed conversations; without it a row is one
    conversation.
    """

    ids: Tensor
    answer: Tensor
    """[rows, columns], as `ids` and `documents`."""
    taps: Tensor
    """[rows, columns, taps * hidden]"""
    logits: Tensor
    """[rows, columns, vocabulary] the target's, fp32 or wider."""
    documents: Tensor | None = None
    final: Tensor | None = None
    """[rows, columns, hidden] the target's last layer, before its final norm."""


def outputs(head: ParallelHead, embedding: Tensor, lesson: Lesson, found: Elements) -> Tensor:
    """Pre-norm outputs [rows, elements, hidden]. `embedding` [vocabulary, hidden] is the target's."""
    deep = (found.depths > 0)[..., None]  # [rows, elements, 1]
    following = torch.roll(lesson.ids, -1, dims=1).gather(1, found.anchors)  # [rows, elements]
    embedded = torch.where(deep, head.mask_embedding, embedding[following])  # [rows, elements, hidden]
    # taps of the anchors: [rows, elements, taps * hidden]
    taps = lesson.taps.gather(1, found.anchors[..., None].expand(-1, -1, lesson.taps.shape[-1]))
    hidden = head.fc(torch.where(deep, head.mask_hidden, taps)).to(taps.dtype)  # [rows, elements, hidden]
    shape, columns = head.shape.head, lesson.ids.shape[1]
    cosines, sines = turned(columns + int(found.depths.max()) + 1, shape.head_dim, shape.rope, lesson.taps)
    rotations = cosines[found.positions][:, None], sines[found.positions][:, None]  # [rows, 1, elements, head_dim] each
    return head(embedded, hidden, rotations, blocks(found, columns, product_dtype(taps), lesson.documents))


def judge_parallel(
    head: ParallelHead,
    embedding: Tensor,
    lesson: Lesson,
    vocabulary: DraftVocabulary,
    drop: Drop,
    generator: torch.Generator,
    *,
    limit: int | None = None,
    objective: Objective = soft_cross_entropy,
    decay: float = 1.0,
) -> Iterator[Judged]:
    """Yields one result, or with a `limit` of elements one per part: call backward on each before taking the next.

    Losses are sums over elements, those of depth d weighted by decay^d, divided by the weights of the whole batch, so
    that parts add up. The paper weights all equally. Elements whose most likely token is outside the draft vocabulary
    give no gradient, but count as misses.
    """
    kept = kept_anchors(lesson.answer, drop, generator, lesson.documents)
    top = lesson.logits.argmax(-1)  # [rows, columns]
    # judged and wanted: [rows, depth, columns] each
    judged = torch.stack([loss_mask(lesson.answer, depth, lesson.documents) for depth in range(drop.depth)], 1) & kept
    wanted = judged & torch.stack([looked_ahead(vocabulary.t2d[top], depth + 1) for depth in range(drop.depth)], 1)
    shares = decay ** torch.arange(drop.depth, device=kept.device, dtype=lesson.logits.dtype)  # [depth]
    total = (wanted.sum((0, 2)) * shares).sum().clamp(min=1)
    columns = torch.arange(kept.shape[2], device=kept.device)
    parts = [(kept, columns >= 0)] if limit is None else segments(kept, limit)
    for part, answered in parts:
        hits = torch.zeros_like(kept)
        loss = lesson.logits.new_zeros(())
        own = wanted & answered  # [rows, depth, columns]
        if own.any():
            loss = _part(head, embedding, lesson, vocabulary, part, own, top, objective, shares, hits) / total
        yield _counted(loss, judged & answered, hits)


def _part(
    head: ParallelHead,
    embedding: Tensor,
    lesson: Lesson,
    vocabulary: DraftVocabulary,
    part: Tensor,
    wanted: Tensor,
    top: Tensor,
    objective: Objective,
    shares: Tensor,
    hits: Tensor,
) -> Tensor:
    """The summed loss of `wanted` [rows, depth, columns], weighted by `shares` [depth]; marks in `hits` which drafts
    would be right.
    """
    found = elements(part)
    output = outputs(head, embedding, lesson, found)
    rows, places = (wanted.flatten(1).gather(1, found.depths * wanted.shape[2] + found.anchors) & found.real).nonzero(
        as_tuple=True
    )
    anchors, depths = found.anchors[rows, places], found.depths[rows, places]  # [n] each
    goals = lesson.logits[rows, anchors + depths + 1]  # [n, vocabulary]
    ids = vocabulary.draft_to_target
    drafted = drafted_logits(head, output[rows, places]).to(goals.dtype)  # [n, draft vocabulary], as wanted_ids
    mass = (goals[:, ids].logsumexp(-1) - goals.logsumexp(-1)).exp()  # [n]
    hits[rows, depths, anchors] = ids[drafted.argmax(-1)] == top[rows, anchors + depths + 1]
    wanted_ids = goals[:, ids].softmax(-1)
    loss = drafted.new_zeros(())
    for depth, share in enumerate(shares):
        own = depths == depth
        loss = loss + share * objective(drafted[own], wanted_ids[own], mass[own])
    return loss


def _counted(loss: Tensor, judged: Tensor, hits: Tensor) -> Judged:
    """judged and hits [rows, depth, columns]."""
    alive, counts = torch.ones_like(judged[:, 0]), []
    for depth in range(judged.shape[1]):
        reached = alive & judged[:, depth]
        alive = reached & hits[:, depth]
        counts.append(torch.stack([reached.sum(), alive.sum(), judged[:, depth].sum()]))
    reached, right, drafts = torch.stack(counts).unbind(1)
    return Judged(loss, reached, right, drafts)

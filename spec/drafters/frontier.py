"""One level of a tree's growth: the nodes that get children, their children, and which of these get children next.

Called by `draft` once a level, between two passes of the head.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.spec.heads.head import Head
from aerie.spec.trees.tree import Level, below


@dataclass(frozen=True, slots=True)
class Frontier:
    """The nodes of a level that get children, f in each row."""

    scores: Tensor
    """[R, f]"""
    indices: Tensor
    """[R, f] index among the row's candidates."""
    words: Tensor
    """[R, f] expanded ancestors, the node itself included, by scratch slot."""
    hidden: Tensor
    """[R * f, H] the head's input for them: their parents' feedback."""


def children(head: Head, z: Tensor, frontier: Frontier, topk: int, tau: float) -> Level:
    """z [R * f, Vd] -> the K best children of each frontier node, scored by the sum of log softmax(z / tau) along their
    path. A node with a NaN or +inf in its z has children of score -inf.
    """
    rows, nodes = frontier.scores.shape
    best, ids = z.topk(topk, -1)  # [R * f, K], as edges
    edges = (best - z.logsumexp(-1, keepdim=True)) if tau == 1 else best / tau - (z / tau).logsumexp(-1, keepdim=True)
    return Level(
        tokens=head.target_ids(ids).view(rows, -1),
        scores=below(frontier.scores[:, :, None], edges.view(rows, nodes, topk)).view(rows, -1),
        parents=frontier.indices[:, :, None].expand(rows, nodes, topk).reshape(rows, -1),
    )


def advance(
    level: Level, frontier: Frontier, feedback: Tensor, topk: int, depth: int, first: int
) -> tuple[Frontier, Tensor]:
    """Makes the K best candidates of a level the next frontier; returns it with their tokens [R * K]. The level's first
    candidate is candidate `first` of its row.
    """
    rows, nodes = frontier.scores.shape
    scores, picked = level.scores.topk(topk, -1)  # [R, K], as parents and words
    parents = torch.div(picked, topk, rounding_mode="floor")
    own = torch.arange((depth - 1) * topk, depth * topk, device=picked.device)  # [K] scratch slots
    fed = feedback.view(rows, nodes, -1).gather(1, parents[:, :, None].expand(-1, -1, feedback.shape[-1]))  # [R, K, H]
    words = frontier.words.gather(1, parents) | (torch.ones_like(own) << own)
    return Frontier(scores, picked + first, words, fed.flatten(0, 1)), level.tokens.gather(1, picked).view(-1)

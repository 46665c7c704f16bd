"""Trees in C++ (native/src/trees.cpp): the children of a frontier, the next frontier, and the nodes selected from all
candidates, one call each instead of a dozen operators.
"""

import torch
from torch import Tensor

from aerie.native.library import library
from aerie.spec.drafters.frontier import Frontier
from aerie.spec.heads.head import Head
from aerie.spec.trees.tree import Candidates, Level, Tree


def children(head: Head, z: Tensor, frontier: Frontier, topk: int, tau: float) -> Level:
    rows, nodes = frontier.scores.shape
    scores = torch.empty(rows, nodes * topk)
    parents, tokens = torch.empty(2, rows, nodes * topk, dtype=torch.int64).unbind()
    z, mapping = z.contiguous(), head.weights.draft_to_target
    library().children(
        scores.data_ptr(),
        parents.data_ptr(),
        tokens.data_ptr(),
        z.data_ptr(),
        frontier.scores.data_ptr(),
        frontier.indices.data_ptr(),
        None if mapping is None else mapping.data_ptr(),
        rows * nodes,
        z.shape[1],
        topk,
        tau,
    )
    return Level(tokens, scores, parents)


def advance(
    level: Level, frontier: Frontier, feedback: Tensor, topk: int, depth: int, first: int
) -> tuple[Frontier, Tensor]:
    rows, nodes = frontier.scores.shape
    scores = torch.empty(rows, topk)
    indices, words, tokens = torch.empty(3, rows, topk, dtype=torch.int64).unbind()
    feedback = feedback.contiguous()
    fed = feedback.new_empty(rows * topk, feedback.shape[1])
    library().advanced(
        scores.data_ptr(),
        indices.data_ptr(),
        words.data_ptr(),
        tokens.data_ptr(),
        fed.data_ptr(),
        level.scores.data_ptr(),
        level.tokens.data_ptr(),
        frontier.words.data_ptr(),
        feedback.data_ptr(),
        rows,
        nodes,
        topk,
        first,
        (depth - 1) * topk,
        fed.stride(0) * fed.element_size(),
    )
    return Frontier(scores, indices, words, fed), tokens.view(-1)


def select(candidates: Candidates, counts: Tensor, widest: int) -> Tree:
    rows, total = candidates.scores.shape
    tokens, depths, parents, words = torch.empty(4, rows, widest, dtype=torch.int64).unbind()
    library().selected(
        tokens.data_ptr(),
        depths.data_ptr(),
        parents.data_ptr(),
        words.data_ptr(),
        candidates.tokens.data_ptr(),
        candidates.scores.data_ptr(),
        candidates.parents.data_ptr(),
        candidates.depths.data_ptr(),
        counts.data_ptr(),
        rows,
        total,
        widest,
    )
    return Tree(tokens, depths, parents, words)

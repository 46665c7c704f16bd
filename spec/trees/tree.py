"""A draft tree as flat arrays, and the selection of its nodes from the candidates that drafting scored.

    candidates of a row, level by level (the root first):      0 | 1 .. K | K + 1 .. K + K*K | ...
    its selected nodes, in the same order:                     0   1   2        3      4           parents first
    words, bit i = node i, itself included:                    1  11 101     1011  10011

Made by drafters; `accept` and the verifying pass read the result. Invariant: a node's parent is selected
and has a smaller index.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aerie.contracts.step import Ints


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes of R rows, padded to the widest; row r's nodes are the first `counts[r]`, and padding repeats no real node.

    `parents` and `words` are None for chains, where node i's parent is node i - 1 and attention is causal.
    """

    tokens: Tensor
    """[R, M] target ids; node 0 is the root, a token already committed."""
    depths: Tensor
    """[R, M] int64; a node's token stands at position length + depth."""
    parents: Tensor | None
    """[R, M] int64; the root is its own parent."""
    words: Tensor | None
    """[R, M] int64 ancestor words, which include the node itself."""
    counts: Tensor | None = None
    """[R] on the host: nodes of each row, root included, where chains end each at its own level; else None."""

    @property
    def is_chain(self) -> bool:
        return self.parents is None

    @property
    def masks(self) -> tuple[Tensor, ...]:
        """What attention masks by: the words of a tree; nothing for chains, which are causal."""
        return () if self.words is None else (self.words,)

    @property
    def parent_nodes(self) -> Tensor:
        """[R, M] the parent of each node; the root is its own."""
        return (self.depths - 1).clamp(min=0) if self.parents is None else self.parents


def begun_with(tree: Tree, forced: Tensor) -> Tree:
    """A chain that begins with the tokens `forced` [R, depth], as far as they are not -1."""
    own = forced[:, : tree.tokens.shape[1] - 1]
    drafted = torch.where(own >= 0, own, tree.tokens[:, 1:])
    return replace(tree, tokens=torch.cat([tree.tokens[:, :1], drafted], 1))


@dataclass(frozen=True, slots=True)
class Candidates:
    """Everything drafted for R rows, [R, C] each, in level order; candidate 0 is the root with score 0."""

    tokens: Tensor
    scores: Tensor
    """fp32, never above the parent's and never NaN; -inf where the head gave NaN or +inf."""
    parents: Tensor
    """Candidate index of the parent, smaller than the candidate's own; the root's is 0."""
    depths: Tensor
    """[C]"""
    deepest: int


@dataclass(frozen=True, slots=True)
class Level:
    """Candidates of one depth, [R, c] each; `parents` as in `Candidates`."""

    tokens: Tensor
    scores: Tensor
    parents: Tensor


def rooted(tokens: Tensor) -> Level:
    """The level of depth 0: root tokens [R]."""
    zero = torch.zeros_like(tokens)[:, None]  # [R, 1]
    return Level(tokens[:, None], zero.float(), zero)


def joined(levels: list[Level]) -> Candidates:
    """All levels of a draft, the root's first."""
    depths = [levels[0].parents.new_full((level.tokens.shape[1],), depth) for depth, level in enumerate(levels)]
    return Candidates(
        tokens=torch.cat([level.tokens for level in levels], 1),
        scores=torch.cat([level.scores for level in levels], 1),
        parents=torch.cat([level.parents for level in levels], 1),
        depths=torch.cat(depths),
        deepest=len(levels) - 1,
    )


def below(scores: Tensor, edges: Tensor) -> Tensor:
    """Scores of the children on edges `edges` of nodes with `scores`, broadcast. Rounding lifts no child above its
    parent, and a NaN edge gives -inf.
    """
    return scores + edges.clamp(max=0).nan_to_num_(nan=-torch.inf, neginf=-torch.inf)


def select(candidates: Candidates, counts: Tensor, widest: int) -> Tree:
    """Selects the best `counts` [R] candidates of each row, padded to `widest`.

    Since no score exceeds its parent's and ties go to the smaller index, the selected set is closed under parents.
    Scores that break this are lowered first: a wrong draft costs speed, a node without its parent would corrupt the
    text.
    """
    total = candidates.scores.shape[1]  # C; M is `widest`
    order = _sound_scores(candidates).sort(stable=True, dim=1, descending=True).indices[:, :widest]  # [R, M]
    places = torch.arange(widest, device=order.device)  # [M]
    inside = places < counts[:, None]  # [R, M]
    chosen = order.masked_fill(~inside, total).sort(1).values  # [R, M] candidates; `total` in padding
    real = chosen.clamp(max=total - 1)  # [R, M]
    parents = torch.searchsorted(chosen, candidates.parents.gather(1, real)).masked_fill_(~inside, 0)  # [R, M]
    return Tree(
        tokens=candidates.tokens.gather(1, real),
        depths=candidates.depths[real].masked_fill_(~inside, 0),
        parents=parents,
        words=ancestor_words(parents, min(candidates.deepest, widest - 1)),
    )


def _sound_scores(candidates: Candidates) -> Tensor:
    """Scores [R, C] with -inf for NaN and +inf, each capped at its ancestors' scores, by pointer doubling."""
    scores, parents = candidates.scores, candidates.parents
    scores = scores.masked_fill(~(scores < torch.inf), -torch.inf)
    covered = 1
    while covered <= candidates.deepest:
        scores = torch.minimum(scores, scores.gather(1, parents))
        parents = parents.gather(1, parents)
        covered *= 2
    return scores


def ancestor_words(parents: Tensor, deepest: int) -> Tensor:
    """parents [R, M], a root its own -> words [R, M], by pointer doubling, for paths of at most `deepest` steps."""
    words = torch.ones_like(parents) << torch.arange(parents.shape[1], device=parents.device)
    covered = 1
    while covered <= deepest:
        words = words | words.gather(1, parents)
        parents = parents.gather(1, parents)
        covered *= 2
    return words


def chain(tokens: Tensor) -> Tree:
    """A chain of tokens [R, M], the root first."""
    rows, width = tokens.shape
    depths = torch.arange(width, device=tokens.device).expand(rows, width)
    return Tree(tokens=tokens, depths=depths, parents=None, words=None)


def candidate_count(topk: int, depth: int) -> int:
    """Candidates of a row, root included: the most nodes that drafting can provide."""
    return 1 + depth if topk == 1 else 1 + topk + (depth - 1) * topk * topk if depth else 1


def usable_nodes(nodes: Ints, topk: int, depth: int) -> Ints:
    """Caps a plan's node counts at what drafting can provide."""
    return nodes.clip(max=candidate_count(topk, depth))


def with_plain_rows(tree: Tree, drafting: Tensor, roots: Tensor) -> Tree:
    """Spreads `tree`, of rows `drafting` [f], over all R rows; the other rows get their root [R] alone."""
    rows, width = roots.numel(), tree.tokens.shape[1]

    def spread(values: Tensor, fill: Tensor) -> Tensor:
        return fill.expand(rows, width).clone().index_copy_(0, drafting, values)

    zero, places = roots.new_zeros(1, 1), torch.arange(width, device=roots.device)  # [1, 1], [M]
    return Tree(
        tokens=spread(tree.tokens, roots[:, None]),
        depths=spread(tree.depths, zero),
        parents=None if tree.parents is None else spread(tree.parents, zero),
        words=None if tree.words is None else spread(tree.words, (zero + 1) << places),
        counts=None if tree.counts is None else torch.ones_like(roots).index_copy_(0, drafting, tree.counts),
    )

"""The head drafts chains and best-first trees, from the draft seeds that the step before left.

Level 1 is read off the seed without a pass; each further level is one pass of the head over the frontier, at most K
nodes a row. Scratch: the i-th expanded node of a row of length n writes its KV to slot n + i with RoPE position n - 1 +
its depth, sees the row's n pairs and its expanded ancestors, and is discarded when the step ends. Nothing here depends
on a device value, so nothing needs a host sync.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.contracts.step import MAX_NODES
from aerie.engine.attention import Attention, Planned, planned_for
from aerie.engine.sampling.choose import likeliest
from aerie.engine.state.row_tables import RowTables
from aerie.engine.step.batch import Cover, attention_inputs
from aerie.spec.drafters.confidence import Confidence
from aerie.spec.drafters.frontier import Frontier, advance, children
from aerie.spec.heads.head import Head
from aerie.spec.trees.ranking import Ranking, log_likelihood
from aerie.spec.trees.tree import Candidates, Tree, chain, joined, rooted, select


@dataclass(frozen=True, slots=True)
class Roots:
    """The state of R rows before they draft."""

    owners: Tensor
    """[R] table rows; the dummy row for rows that have ended."""
    lengths: Tensor
    """[R] true lengths n."""
    tokens: Tensor
    """[R] the roots x_n."""
    seeds: Tensor
    """[R, H]"""
    covered: Cover
    """The pages that the host's bounds cover, scratch included."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The shape of a draft. `nodes` [R] are verified for each row, root included, at most `widest`."""

    depth: int
    topk: int
    nodes: Tensor
    widest: int
    edge_temperatures: tuple[float, ...] = ()
    confidence: Confidence | None = None
    """Ends chains early; trees are drafted whole."""

    def edge_temperature(self, level: int) -> float:
        return self.edge_temperatures[level - 1] if level <= len(self.edge_temperatures) else 1.0


def scratch_slots(topk: int, depth: int, *, parallel: bool) -> int:
    """Slots past a row's length that drafting writes; a parallel head uses one mask slot a level."""
    return (1 if parallel else topk) * max(depth - 1, 0)


def draft(head: Head, tables: RowTables, roots: Roots, growth: Growth, ranking: Ranking) -> Tree:
    """Drafts trees for every row. Cuts K to the draft vocabulary; the root alone is a tree of depth 0. Chains may be
    shorter than planned if `growth.confidence` ends them.
    """
    if growth.depth == 0:
        return chain(roots.tokens[:, None])
    if growth.topk == 1:
        return chain(draft_chain(head, tables, roots, growth, ranking)[:, : growth.widest])
    candidates = draft_tree(head, tables, roots, growth, ranking)
    return head.kernels[select](candidates, growth.nodes, growth.widest)


def draft_chain(head: Head, tables: RowTables, roots: Roots, growth: Growth, ranking: Ranking) -> Tensor:
    """Follows the best child at each level -> tokens [R, levels + 1], the root first: no scores and no selection."""
    levels = _levels(head, tables, roots, growth, 1)
    tokens = [roots.tokens]
    reading = head.read(roots.seeds)
    for level in range(1, growth.depth + 1):
        best = head.kernels[likeliest](ranking.rank(reading.logits, level))
        tokens.append(head.target_ids(best))
        if level == growth.depth or _lost(head, growth.confidence, ranking, reading.logits, best):
            break
        words = torch.full_like(roots.tokens, (1 << level) - 1)  # a node of a chain sees all nodes before it
        place = levels.place(level, words)
        reading = head.read(head.forward(tokens[-1], reading.feedback, place.turns, place.slots, place.planned))
    return torch.stack(tokens, 1)


def _lost(head: Head, confidence: Confidence | None, ranking: Ranking, logits: Tensor, best: Tensor) -> bool:
    if confidence is None:
        return False
    return confidence.lost(head.kernels[log_likelihood](logits, best, ranking.temperatures))


def draft_tree(head: Head, tables: RowTables, roots: Roots, growth: Growth, ranking: Ranking) -> Candidates:
    """All candidates from which trees are selected."""
    topk = min(growth.topk, head.config.draft_vocabulary)
    levels = _levels(head, tables, roots, growth, topk)
    reading = head.read(roots.seeds)
    found = [rooted(roots.tokens)]
    frontier = Frontier(found[0].scores, found[0].parents, torch.zeros_like(found[0].parents), reading.feedback)
    first = 1
    for level in range(1, growth.depth + 1):
        z = ranking.rank(reading.logits, level).float()
        found.append(head.kernels[children](head, z, frontier, topk, growth.edge_temperature(level)))
        if level == growth.depth:
            break
        frontier, tokens = head.kernels[advance](found[-1], frontier, reading.feedback, topk, level, first)
        first += found[-1].tokens.shape[1]
        place = levels.place(level, frontier.words.view(-1))
        reading = head.read(head.forward(tokens, frontier.hidden, place.turns, place.slots, place.planned))
    return joined(found)


@dataclass(frozen=True, slots=True)
class _Place:
    """Positions and slots of a level's nodes in the head's KV, and what they see."""

    planned: Planned
    turns: Tensor
    slots: Tensor


@dataclass(frozen=True, slots=True)
class _Levels:
    """Places of all levels, gathered once: level d expands the nodes of depth d."""

    attention: Attention
    base: Planned
    turns: Tensor
    """[D - 1, R * K, 1, head_dim / 2]"""
    slots: Tensor
    """[D - 1, R * K]"""

    def place(self, level: int, words: Tensor) -> _Place:
        """The place of the nodes of depth `level` with scratch words [R * K]."""
        return _Place(self.attention.see(self.base, words), self.turns[level - 1], self.slots[level - 1])


def _levels(head: Head, tables: RowTables, roots: Roots, growth: Growth, topk: int) -> _Levels:
    assert topk * (growth.depth - 1) <= MAX_NODES
    rows, passes = roots.tokens.numel(), growth.depth - 1
    device = roots.tokens.device
    spread = (passes, rows, topk)
    scratch = torch.arange(passes * topk, device=device).view(passes, 1, topk)
    positions = (roots.lengths[None, :, None] + scratch).reshape(-1)
    owners = roots.owners[None, :, None].expand(spread).reshape(-1)
    depths = torch.arange(passes, device=device).view(passes, 1, 1)
    ropes = (roots.lengths[None, :, None] + depths).expand(spread).reshape(-1)
    indptr = torch.arange(0, (rows + 1) * topk, topk, dtype=torch.int32)
    turns = head.turns(ropes)
    inputs = attention_inputs(tables, roots.owners, roots.lengths, roots.covered, indptr)
    return _Levels(
        attention=head.attention,
        base=planned_for(head.attention, inputs),
        turns=turns.view(passes, rows * topk, *turns.shape[1:]),
        slots=tables.slots(owners, positions).view(passes, rows * topk),
    )

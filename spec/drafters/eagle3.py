"""EAGLE-3 drafts chains and best-first trees level by level, from the draft seeds that the step before left.

Level 1 is read off the seed without a pass; each further level is one pass of the head over the frontier, at most K
nodes a row. Scratch: the i-th expanded node of a row of length n writes its KV to slot n + i with RoPE position n - 1 +
its depth, sees the row's n pairs and its expanded ancestors, and is discarded when the step ends. Nothing here depends
on a device value, so nothing needs a host sync.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from aerie.contracts.step import MAX_NODES
from aerie.engine.attention import Attention, Planned, planned_for
from aerie.engine.memory import Sizes
from aerie.engine.model.target import LoadedTarget
from aerie.engine.sampling.choose import likeliest
from aerie.engine.state.row_tables import RowTables
from aerie.engine.step.batch import attention_inputs
from aerie.spec.drafters.confidence import Confidence
from aerie.spec.drafters.drafter import Deployment, Growth, Kind, Roots
from aerie.spec.drafters.frontier import Frontier, advance, children
from aerie.spec.drafters.head_drafter import HeadDrafter, OpenedHead, checkpoint_in, needs_of
from aerie.spec.heads.head import Head
from aerie.spec.trees.ranking import Ranking, log_likelihood
from aerie.spec.trees.tree import Candidates, Tree, chain, joined, rooted, select


def scratch_slots(topk: int, depth: int) -> int:
    """One slot for every node that is expanded: those of the last level are not."""
    return topk * max(depth - 1, 0)


class Eagle3(HeadDrafter):
    """Implements Drafter and GraphDrafter."""

    def __init__(self, head: Head) -> None:
        super().__init__(head, scratch_slots)

    def draft_queries(self, topk: int, depth: int) -> int:
        return topk

    def draft(self, tables: RowTables, roots: Roots, growth: Growth, ranking: Ranking) -> Tree:
        """Cuts K to the draft vocabulary. Chains may end early by `growth.confidence_floor`."""
        if growth.depth == 0:
            return chain(roots.tokens[:, None])
        if growth.topk == 1:
            return draft_chain(self.head, tables, roots, growth, ranking)
        candidates = draft_tree(self.head, tables, roots, growth, ranking)
        return self.head.kernels[select](candidates, growth.nodes, growth.widest)


@dataclass(frozen=True, slots=True)
class Eagle3Checkpoint(OpenedHead):
    """Implements DrafterCheckpoint."""

    def load(self, target: LoadedTarget, sizes: Sizes) -> Eagle3:
        return Eagle3(self.head(target, sizes))


def open_eagle3(folder: Path, deployment: Deployment) -> Eagle3Checkpoint:
    checkpoint = checkpoint_in(folder, deployment)
    return Eagle3Checkpoint(checkpoint, deployment, needs_of(checkpoint.config, scratch_slots))


KIND = Kind("eagle3", recognizes=lambda folder: True, open=open_eagle3)


def draft_chain(head: Head, tables: RowTables, roots: Roots, growth: Growth, ranking: Ranking) -> Tree:
    """The best child at each level: no scores and no selection."""
    levels, confidence = _levels(head, tables, roots, growth, 1), None
    if not math.isinf(growth.confidence_floor):
        confidence = Confidence(growth.confidence_floor, (growth.nodes - 1).clamp(max=growth.depth))
    tokens = [roots.tokens]  # [R] each
    reading = head.read(roots.seeds)
    for level in range(1, growth.depth + 1):
        best = head.kernels[likeliest](ranking.rank(reading.logits, level))  # [R] draft ids
        forced = None if growth.forced is None else growth.forced[:, level - 1]  # [R]
        guessed = head.target_ids(best)
        tokens.append(guessed if forced is None else torch.where(forced >= 0, forced, guessed))
        if confidence is not None and not confidence.goes_on(_likelihood(head, ranking, reading.logits, best, forced)):
            break
        if level == growth.depth:
            break
        words = torch.full_like(roots.tokens, (1 << level) - 1)  # [R]: a node of a chain sees all nodes before it
        place = levels.place(level, words)
        reading = head.read(head.forward(tokens[-1], reading.feedback, place.rotations, place.slots, place.planned))
    drafted = torch.stack(tokens, 1)[:, : growth.widest]  # [R, levels + 1]
    if confidence is None:
        return chain(drafted)
    counts = 1 + confidence.levels
    return replace(chain(drafted[:, : int(counts.max())]), counts=counts)


def _likelihood(head: Head, ranking: Ranking, logits: Tensor, best: Tensor, forced: Tensor | None) -> Tensor:
    """[R] log probabilities of `best` [R], read off logits [R, Vd]; what is forced is certain."""
    level = head.kernels[log_likelihood](logits, best, ranking.temperatures)
    return level if forced is None else torch.where(forced >= 0, 0.0, level)


def draft_tree(head: Head, tables: RowTables, roots: Roots, growth: Growth, ranking: Ranking) -> Candidates:
    """All candidates from which trees are selected."""
    topk = min(growth.topk, head.config.draft_vocabulary)
    levels = _levels(head, tables, roots, growth, topk)
    reading = head.read(roots.seeds)
    found = [rooted(roots.tokens)]
    frontier = Frontier(found[0].scores, found[0].parents, torch.zeros_like(found[0].parents), reading.feedback)
    first = 1
    for level in range(1, growth.depth + 1):
        z = ranking.rank(reading.logits, level).float()  # [R * f, Vd]
        found.append(head.kernels[children](head, z, frontier, topk, growth.edge_temperature(level)))
        if level == growth.depth:
            break
        # frontier of K nodes a row, tokens [R * K]
        frontier, tokens = head.kernels[advance](found[-1], frontier, reading.feedback, topk, level, first)
        first += found[-1].tokens.shape[1]
        place = levels.place(level, frontier.words.view(-1))
        reading = head.read(head.forward(tokens, frontier.hidden, place.rotations, place.slots, place.planned))
    return joined(found)


@dataclass(frozen=True, slots=True)
class _Place:
    """Positions and slots of a level's nodes in the head's KV, and what they see."""

    planned: Planned
    rotations: Tensor
    """[R * K, 1, head_dim / 2]"""
    slots: Tensor
    """[R * K]"""


@dataclass(frozen=True, slots=True)
class _Levels:
    """Places of all levels, gathered once: level d expands the nodes of depth d."""

    attention: Attention
    base: Planned
    rotations: Tensor
    """[D - 1, R * K, 1, head_dim / 2]"""
    slots: Tensor
    """[D - 1, R * K]"""

    def place(self, level: int, words: Tensor) -> _Place:
        """The place of the nodes of depth `level` with scratch words [R * K]."""
        return _Place(self.attention.see(self.base, words), self.rotations[level - 1], self.slots[level - 1])


def _levels(head: Head, tables: RowTables, roots: Roots, growth: Growth, topk: int) -> _Levels:
    assert topk * (growth.depth - 1) <= MAX_NODES
    rows, passes = roots.tokens.numel(), growth.depth - 1
    device = roots.tokens.device
    spread = (passes, rows, topk)
    scratch = torch.arange(passes * topk, device=device).view(passes, 1, topk)
    positions = (roots.lengths[None, :, None] + scratch).reshape(-1)  # [(D - 1) * R * K], as owners and ropes
    owners = roots.owners[None, :, None].expand(spread).reshape(-1)
    depths = torch.arange(passes, device=device).view(passes, 1, 1)
    ropes = (roots.lengths[None, :, None] + depths).expand(spread).reshape(-1)
    indptr = torch.arange(0, (rows + 1) * topk, topk, dtype=torch.int32)  # [R + 1]
    rotations = head.rotations(ropes)  # [(D - 1) * R * K, 1, head_dim / 2]
    inputs = attention_inputs(tables, roots.owners, roots.lengths, roots.covered, indptr)
    return _Levels(
        attention=head.attention,
        base=planned_for(head.attention, inputs),
        rotations=rotations.view(passes, rows * topk, *rotations.shape[1:]),
        slots=tables.slots(owners, positions).view(passes, rows * topk),
    )

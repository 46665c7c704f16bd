"""A round as the host decides it, staged to the device in one copy: rows, node counts, and the pages that cover them.

Called by the worker before any of the round is launched. The host decides how many nodes each row verifies, the device
which ones.
"""

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from aerie.contracts.step import StepPlan
from aerie.engine.sampling.choose import Needs
from aerie.engine.step.batch import Cover, cover
from aerie.engine.step.state import DeviceState
from aerie.spec.drafters.draft import scratch_slots
from aerie.spec.heads.config import HeadConfig
from aerie.spec.round.extend import Followed, followed
from aerie.spec.round.verify import Nodes, lay_nodes
from aerie.spec.trees.tree import usable_nodes


@dataclass(frozen=True, slots=True)
class Covers:
    """The pages that cover the rows in each pass of a round: the same for all passes, except in a graph."""

    draft: Cover
    verify: Cover
    extend: Cover


@dataclass(frozen=True, slots=True)
class Part:
    """The rows that extend the head, if only some do."""

    followed: Followed
    counts: Tensor
    """[f] nodes of each of these rows."""
    widest: int
    cover: Cover


@dataclass(frozen=True, slots=True)
class Staged:
    """A step's R rows, as staged."""

    rows: Tensor
    turns: Tensor
    counts: Tensor
    """[R] nodes to verify, root included; 1 in rows without head KV."""
    nodes: Nodes
    """How they lie in the pass. A graph's pass has one width for all rows, and computes nodes that do not count."""
    covers: Covers
    depth: int
    topk: int
    needs: Needs
    part: Part | None
    real: Tensor | None = None
    """[R] bool in a captured graph, False in surplus rows; None if all rows are a plan's."""
    drafts: Tensor | None = None
    """[R] bool in a captured graph: rows with head KV; None if all rows draft, or `part` says which."""


def stage_round(state: DeviceState, plan: StepPlan, head: HeadConfig) -> Staged:
    """Stages a round. Cuts K to the head's draft vocabulary."""
    work, put, page = plan.decode, state.transfer.put, state.tables.page_size
    assert work is not None
    topk = min(work.topk, head.draft_vocabulary)
    counts = np.where(plan.drafting, usable_nodes(work.nodes, topk, work.depth), 1).astype(np.int32)
    depth = min(work.depth, int(counts.max()) - 1)
    positions = work.bounds + reach(int(counts.max()), depth, topk, head)
    whole = cover(positions, page, state.transfer)
    picked = followed(plan.drafting, state.transfer)
    part = None
    if picked is not None:
        own = counts[picked.host]
        part = Part(picked, put(own), int(own.max()), cover(positions[picked.host], page, state.transfer))
    return Staged(
        rows=put(plan.rows),
        turns=put(plan.turns),
        counts=put(counts),
        nodes=lay_nodes(counts, state.transfer),
        covers=Covers(whole, whole, whole),
        depth=depth,
        topk=topk,
        needs=state.needs.of(plan.rows),
        part=part,
    )


def cut_short(state: DeviceState, staged: Staged, width: int) -> Staged:
    """The same round with only `width` drafted nodes a row, root included."""
    lay = staged.nodes.layout
    if width >= lay.width:
        return staged
    counts = np.minimum(lay.counts, width)
    nodes = lay_nodes(counts, state.transfer)
    return replace(staged, counts=state.transfer.put(counts), nodes=nodes, depth=width - 1)


def reach(nodes: int, depth: int, topk: int, head: HeadConfig) -> int:
    """Slots past a row's length that a round of this shape writes."""
    return max(nodes, scratch_slots(topk, depth, parallel=head.parallel), depth + 1)

"""A round as the host decides it, staged to the device in one copy: rows, node counts, and the pages that cover them.

Called before any of the round is launched. The host decides how many nodes each row verifies, the device which ones.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from torch import Tensor

from aerie.contracts.step import Ints, StepPlan
from aerie.engine.sampling.choose import Needs
from aerie.engine.step.batch import Cover, cover
from aerie.engine.step.passes import read_rows
from aerie.engine.step.state import DeviceState
from aerie.spec.drafters import drafter
from aerie.spec.round.nodes import Nodes, lay_nodes
from aerie.spec.round.rows import DraftedRows, drafted_rows
from aerie.spec.trees.tree import usable_nodes


class StepRows(Protocol):
    """A step's R rows and their generations in the FutureMap, [R] each."""

    @property
    def rows(self) -> Tensor: ...

    @property
    def generations(self) -> Tensor: ...

    def read(self, state: DeviceState) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Roots [R], lengths [R], done flags [R] and draft seeds [R, H], as the step before left them."""


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """The rows of a plan."""

    rows: Tensor
    generations: Tensor

    def read(self, state: DeviceState) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return read_rows(state, self.rows, self.generations, None)


@dataclass(frozen=True, slots=True)
class Covers:
    """The pages that each pass of a round may touch: those of the drafting rows, of all rows, of the drafting rows."""

    draft: Cover
    verify: Cover
    extend: Cover


@dataclass(frozen=True, slots=True)
class Staged:
    """A round of R rows, of which r draft."""

    rows: StepRows
    counts: Tensor
    """[R] nodes to verify, root included; 1 in rows that do not draft."""
    nodes: Nodes
    """How they lie in the pass. A graph's pass has one width for all rows, and computes nodes that do not count."""
    drafting: DraftedRows
    drafting_counts: Tensor
    """[r] the drafting rows' nodes."""
    widest: int
    """The most of them."""
    covers: Covers
    depth: int
    topk: int
    needs: Needs
    forced: Tensor | None = None
    """[r, depth] tokens that the chains of the drafting rows begin with in any case, -1 elsewhere."""


def stage_round(state: DeviceState, plan: StepPlan, needs: drafter.Needs) -> Staged:
    """Stages a round. Cuts K to the draft vocabulary."""
    work, put, page = plan.decode, state.transfer.put, state.tables.page_size
    assert work is not None
    topk = min(work.topk, needs.draft_vocabulary)
    counts = np.where(plan.drafting, usable_nodes(work.nodes, topk, work.depth), 1).astype(np.int32)  # [R]
    depth = min(work.depth, int(counts.max()) - 1)
    positions = work.bounds + reach(int(counts.max()), depth, topk, needs)  # [R]
    whole = cover(positions, page, state.transfer)
    drafting = drafted_rows(plan.drafting, state.transfer)
    part, own = whole, drafting.of(counts)
    counted = drafting_counted = put(counts)
    if not drafting.every:
        part, drafting_counted = cover(drafting.of(positions), page, state.transfer), put(own)
    forced = state.forced(work)
    return Staged(
        forced=None if forced is None else put(drafting.of(forced[:, :depth])),
        rows=PlannedRows(put(plan.rows), put(plan.generations)),
        counts=counted,
        nodes=lay_nodes(counts, state.transfer),
        drafting=drafting,
        drafting_counts=drafting_counted,
        widest=int(own.max()),
        covers=Covers(part, whole, part),
        depth=depth,
        topk=topk,
        needs=state.needs.of(plan.rows),
    )


def cut_short(state: DeviceState, staged: Staged, drafted: Ints | int) -> Staged:
    """The same round with at most the `drafted` [R] nodes of each row, root included."""
    lay = staged.nodes.layout
    counts = np.minimum(lay.counts, drafted)
    if np.array_equal(counts, lay.counts):
        return staged
    nodes = lay_nodes(counts, state.transfer)
    return replace(staged, counts=state.transfer.put(counts), nodes=nodes, depth=int(counts.max()) - 1)


def reach(nodes: int, depth: int, topk: int, needs: drafter.Needs) -> int:
    """Slots past a row's length that a round of this shape writes."""
    return max(nodes, needs.scratch_slots(topk, depth), depth + 1)

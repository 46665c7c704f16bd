"""The buckets of recorded rounds: what fixes the shapes of a recording, and a round staged at its addresses."""

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.contracts.shape import NO_DRAFT, DraftShape, chain_depths
from aerie.contracts.spec_section import SpecConfig
from aerie.engine.sampling.choose import Needs
from aerie.engine.step.batch import Cover, uniform_layout
from aerie.engine.step.graph_pass import GraphPass
from aerie.engine.step.graphs import FixedRows, Sampling
from aerie.engine.step.passes import read_rows
from aerie.engine.step.state import DeviceState
from aerie.spec.round.nodes import EqualNodes
from aerie.spec.round.rows import EveryRow
from aerie.spec.round.stage import Covers, Staged


@dataclass(frozen=True, slots=True)
class RoundBucket:
    rows: int
    depth: int
    topk: int
    nodes: int
    """The same for every row."""
    sampling: Sampling
    short: bool


@dataclass(frozen=True, slots=True)
class Passes:
    """Attention for a bucket's rows and shape, shared by all its sampling kinds."""

    draft: GraphPass
    verify: GraphPass
    extend: GraphPass

    def renew(self, covered: Cover) -> None:
        for held in (self.draft, self.verify, self.extend):
            held.renew(covered)


@dataclass(frozen=True, slots=True)
class BucketRows:
    """A bucket's rows: a plan's, some of which may have no head KV, and surplus rows, which are done at length 0."""

    fixed: FixedRows

    @property
    def rows(self) -> Tensor:
        return self.fixed.rows

    @property
    def generations(self) -> Tensor:
        return self.fixed.generations

    def read(self, state: DeviceState) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        tokens, lengths, done, seeds = read_rows(state, self.rows, self.generations, self.fixed.real)
        # Rows without head KV have no seed, and what they draft from must stay finite.
        return tokens, lengths, done, torch.where(self.fixed.drafts[:, None], seeds, 0)


Shape = tuple[int, int, int, int, bool]


def shape_of(bucket: RoundBucket) -> Shape:
    return bucket.rows, bucket.depth, bucket.topk, bucket.nodes, bucket.short


def planned_shapes(spec: SpecConfig, sizes: range) -> set[DraftShape]:
    """The shapes that a scheduler may plan for batches of these sizes."""
    shapes = {load.shape for load in spec.by_load} or {spec.shape}
    if spec.planner == "goodput":
        chains = {DraftShape(depth, 1, depth + 1) for depth in chain_depths(shapes)}
        return chains | {shape for shape in shapes if shape.drafts and shape.topk > 1}
    if spec.by_load:
        by_load = sorted(spec.by_load, key=lambda load: load.rows)
        shapes = {next((load.shape for load in by_load if rows <= load.rows), NO_DRAFT) for rows in sizes}
    return {shape for shape in shapes if shape.drafts}


def staged_in(bucket: RoundBucket, needs: Needs, fixed: FixedRows, passes: Passes, device: torch.device) -> Staged:
    return Staged(
        rows=BucketRows(fixed),
        counts=fixed.counts,
        nodes=EqualNodes(uniform_layout(bucket.rows, bucket.nodes, device)),
        drafting=EveryRow(),
        drafting_counts=fixed.counts,
        widest=bucket.nodes,
        covers=Covers(passes.draft.cover, passes.verify.cover, passes.extend.cover),
        depth=bucket.depth,
        topk=bucket.topk,
        needs=needs,
    )

"""What a drafter is: it drafts a tree for every row, and is extended with every token that is committed.

`spec.round` knows drafters by this protocol only. A kind of drafter is a file here with its `Kind`, and a line in
`registry`: what it needs of the target and of the tables is stated in its `Needs`, not known elsewhere.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor

from aerie.contracts.config import Config
from aerie.engine.attention import Attention
from aerie.engine.attention.inputs import AttentionInputs
from aerie.engine.bindings import Kernels
from aerie.engine.memory import Sizes
from aerie.engine.model.config import ModelConfig
from aerie.engine.model.target import LoadedTarget
from aerie.engine.state.row_tables import RowTables
from aerie.engine.step.batch import Cover
from aerie.spec.trees.ranking import Ranking
from aerie.spec.trees.tree import Tree

ScratchSlots = Callable[[int, int], int]
"""(topk, depth) -> slots past a row's length that a draft writes; they are discarded when the step ends."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a drafter needs of the worker."""

    taps: tuple[int, ...]
    """Boundaries of the target whose residual streams it is extended with; () for none."""
    seed_width: int
    """Numbers that a step leaves a row for its next draft; 0 for none."""
    kv_numbers: int
    """Key and value numbers of one token in its own pool, which has the target's pages; 0 without a pool."""
    draft_vocabulary: int
    """Ids that it can draft, and so the most children of a node."""
    scratch_slots: ScratchSlots


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
    """[R, seed_width]"""
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
    confidence_floor: float = -math.inf
    """A drafter may end each chain before its log probability is below this; trees are drafted whole."""

    forced: Tensor | None = None
    """[R, depth] tokens that chains begin with in any case, -1 elsewhere; None if there are none."""

    def edge_temperature(self, level: int) -> float:
        return self.edge_temperatures[level - 1] if level <= len(self.edge_temperatures) else 1.0


@dataclass(frozen=True, slots=True)
class Pairs:
    """T pairs of r rows, row by row: pair j of a row is (tap a_j, token x_(j+1)).

    Pairs after a row's last one are surplus: they lie past its length, where the next round overwrites them.
    """

    tokens: Tensor
    """[T] target ids."""
    taps: Tensor
    """[T, taps * target hidden]"""
    positions: Tensor
    """[T]"""
    slots: Tensor
    """[T] slots of the positions, in a pool with the target's pages."""
    inputs: AttentionInputs
    """For a pass over the pairs."""
    lasts: Tensor
    """[r] index of each row's last pair."""


class Drafter(Protocol):
    """Drafts; loaded, with all that it keeps between steps. Nothing here may wait for the device."""

    needs: Needs

    @property
    def draft_to_target(self) -> Tensor | None:
        """[draft vocabulary] target ids of the draft ids; None if they are the same."""

    @property
    def bytes(self) -> int:
        """Bytes of its own weights as held."""

    @property
    def kv_bytes(self) -> int:
        """Bytes of its own pool."""

    def draft(self, tables: RowTables, roots: Roots, growth: Growth, ranking: Ranking) -> Tree:
        """A tree [R, M <= growth.widest] for each of R rows; a chain if `growth.topk` is 1. Depth 0 is the root alone.

        `ranking` orders the ids of a level. Chains may end before `growth.depth`. Whatever is drafted, the text is the
        target's.
        """

    def extend(self, pairs: Pairs) -> Tensor:
        """Takes in committed tokens, of a prompt or of a round -> the draft seeds [r, seed_width] of their rows.

        Called after every pass that commits tokens or reads a prompt, also if nothing was drafted.
        """


@runtime_checkable
class GraphDrafter(Protocol):
    """A drafter whose passes can be recorded as CUDA graphs."""

    @property
    def attention(self) -> Attention:
        """Capturable, if the passes are recorded."""

    def draft_queries(self, topk: int, depth: int) -> int:
        """Queries of a row in a pass of a draft; all passes have as many."""


def recordable(drafter: Drafter) -> TypeGuard[GraphDrafter]:
    """Whether CUDA graphs can record the drafter's passes."""
    return isinstance(drafter, GraphDrafter) and hasattr(drafter.attention, "hold")


class DrafterCheckpoint(Protocol):
    """A drafter's folder that fits its target; no tensor has been read yet, so that the target can be loaded first."""

    @property
    def needs(self) -> Needs: ...

    @property
    def format(self) -> str:
        """The layout of the checkpoint, for reports."""

    @property
    def bytes(self) -> int:
        """Bytes of its own weights, as memory is planned."""

    def load(self, target: LoadedTarget, sizes: Sizes) -> Drafter:
        """Reads the tensors and allocates the pool. Raises ConfigError."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a drafter is opened for."""

    config: Config
    target: ModelConfig
    dtype: torch.dtype
    device: torch.device
    kernels: Kernels


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of drafter."""

    name: str
    """In reports, as `head_kind`."""
    recognizes: Callable[[Path], bool]
    """Whether a folder holds one."""
    open: Callable[[Path, Deployment], DrafterCheckpoint]
    """Opens a folder that holds one. Raises ConfigError if it cannot be served, or was made for another target."""

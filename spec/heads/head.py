"""The EAGLE-3 head's forward pass, equations (F0)..(F8) of EAGLE-3 (Li et al., 2025), on the engine's layer parts and a
KV pool.

Drafters run it on a few tokens a level, and on the pairs of committed tokens. Invariant: `forward` returns the
*pre-norm* output; `read` alone decides whether the next level gets it or its norm.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from aerie.engine.attention import Attention, Planned
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.model.body import Body
from aerie.engine.model.layer import Pass
from aerie.engine.model.norm import RmsNorm
from aerie.engine.model.projection import Projection
from aerie.engine.model.rope import rotations
from aerie.engine.model.stack import Stack, through
from aerie.engine.state.kv_pool import KVPool
from aerie.spec.heads.config import HeadConfig


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """A head's tensors, merged; `spec.checkpoints.loader` reads them from files."""

    fc: Projection
    pre_norms: tuple[RmsNorm, ...]
    """No norm, one for the concatenated taps, or one for each tap: `HeadConfig.pre_norm`."""
    stack: Stack
    """Its first layer also reads the embeddings."""
    norm: RmsNorm
    output: Projection
    """To the draft vocabulary."""
    embeddings: Tensor
    """[vocabulary, hidden]: the head's if its checkpoint has them, else the target's."""
    draft_to_target: Tensor | None
    """[draft vocabulary] int64; None for identity."""
    own_output: bool
    own_embeddings: bool
    """Whether the head's checkpoint has them; else they are the target's."""

    @property
    def bytes(self) -> int:
        """Bytes of the head's own tensors in memory."""
        parts: list[Projection | RmsNorm | Stack] = [self.fc, *self.pre_norms, self.norm, self.stack]
        parts += [self.output] if self.own_output else []
        tensors = [self.embeddings] if self.own_embeddings else []
        return sum(part.bytes for part in parts) + sum(one.numel() * one.element_size() for one in tensors)


class Reading(NamedTuple):
    """Readings of a pre-norm output: draft logits [..., Vd], and the next level's input [..., H]."""

    logits: Tensor
    feedback: Tensor


class Head:
    """A head with its KV pool, which shares the target's page table."""

    def __init__(
        self,
        config: HeadConfig,
        weights: HeadWeights,
        pool: KVPool,
        attention: Attention,
        *,
        positions: int,
        kernels: Kernels = REFERENCES,
    ) -> None:
        self.config = config
        self.pool = pool
        self.attention = attention
        self.weights = weights
        self.kernels = kernels
        self.body = Body(
            stack=weights.stack,
            norm=weights.norm,
            output=weights.output,
            embeddings=weights.embeddings,
            rotations=rotations(config.rope, config.head_dim, positions, weights.fc.device),
            pool=pool,
            attention=attention,
            kernels=kernels,
        )

    def fuse(self, taps: Tensor) -> Tensor:
        """(F0): taps [T, n * target hidden] -> [T, H]."""
        weights, config = self.weights, self.config
        if config.pre_norm == "concat":
            taps = weights.pre_norms[0](taps)
        elif config.pre_norm == "per_tap":
            parts = zip(taps.chunk(len(config.taps), -1), weights.pre_norms, strict=True)
            taps = torch.cat([norm(part) for part, norm in parts], -1)
        return weights.fc(taps)

    def rotations(self, positions: Tensor) -> Tensor:
        """RoPE rotations of positions [T] -> [T, 1, head_dim / 2]; consecutive passes slice one gather."""
        return self.body.rotations.index_select(0, positions)

    def forward(self, tokens: Tensor, hidden: Tensor, rotations: Tensor, slots: Tensor, planned: Planned) -> Tensor:
        """(F1)..(F6): target ids [T], incoming hidden [T, H] -> pre-norm output [T, H]. Writes the KV of slots [T]."""
        context = Pass(
            rotations=rotations,
            slots=slots,
            planned=planned,
            attention=self.attention,
            pool=self.pool,
            kernels=self.kernels,
        )
        embedded = self.weights.embeddings.index_select(0, tokens)
        return self.kernels[through](self.weights.stack, hidden.clone(), context, embedded=embedded)[0]

    def read(self, output: Tensor) -> Reading:
        """(F7), (F8): pre-norm output [T, H] -> draft logits [T, Vd] and feedback [T, H]."""
        normed = self.weights.norm(output)
        logits = self.weights.output(normed)
        return Reading(logits, normed if self.config.norm_output else output)

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Draft ids of any shape -> target ids."""
        mapping = self.weights.draft_to_target
        return draft_ids if mapping is None else mapping.index_select(0, draft_ids.reshape(-1)).view_as(draft_ids)

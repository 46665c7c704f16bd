"""P-EAGLE drafts all levels of chains and best-first trees in one pass of its head (arXiv 2602.01469).

Level 1 is read off the seed, as EAGLE-3's is. Level d > 1 is read off mask slot d - 1, at slot and RoPE position n + d
- 2. A mask slot holds the mask token and the mask hidden state in place of a token and a tap that do not exist yet. The
slots see the row's n pairs and each other causally, and are discarded when the step ends. So levels are independent
given the text: a node's children depend only on its depth.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from aerie.contracts.errors import ConfigError
from aerie.engine.attention import planned_for
from aerie.engine.memory import Sizes
from aerie.engine.model.target import LoadedTarget
from aerie.engine.state.row_tables import RowTables
from aerie.engine.step.batch import attention_inputs
from aerie.spec.checkpoints.formats import MASK_KEYS
from aerie.spec.checkpoints.loader import HeadCheckpoint, has_tensor, read_config
from aerie.spec.checkpoints.speculators import flattened, is_speculators
from aerie.spec.drafters.drafter import Deployment, Growth, Kind, Roots
from aerie.spec.drafters.head_drafter import HeadDrafter, OpenedHead, checkpoint_in, needs_of
from aerie.spec.heads.head import Head
from aerie.spec.trees.ranking import Ranking
from aerie.spec.trees.tree import Level, Tree, below, chain, joined, rooted, select

_MASK_HIDDEN = "mask_hidden"


def scratch_slots(topk: int, depth: int) -> int:
    """One mask slot for every level below the first."""
    return max(depth - 1, 0)


class PEagle(HeadDrafter):
    """Implements Drafter and GraphDrafter. Any depth works, but the head is trained only up to some depth."""

    def __init__(self, head: Head, mask_token: int, mask_hidden: Tensor) -> None:
        """`mask_hidden` [1, taps * target hidden] stands for missing taps, the embedding of `mask_token` for a missing
        token.
        """
        super().__init__(head, scratch_slots)
        self.mask_token = mask_token
        self.mask = head.fuse(mask_hidden)
        """[1, H]: the input of a mask slot."""
        self._mask_bytes = mask_hidden.numel() * mask_hidden.element_size()

    @property
    def bytes(self) -> int:
        return super().bytes + self._mask_bytes

    def draft_queries(self, topk: int, depth: int) -> int:
        return max(depth - 1, 1)

    def draft(self, tables: RowTables, roots: Roots, growth: Growth, ranking: Ranking) -> Tree:
        """Cuts K to the draft vocabulary. Chains and trees are drafted whole."""
        if growth.depth == 0:
            return chain(roots.tokens[:, None])
        head = self.head
        logits = self.levels(tables, roots, growth.depth)  # [R, Vd] each
        ranked = [ranking.rank(part, level) for level, part in enumerate(logits, 1)]
        if growth.topk == 1:
            drafted = [head.target_ids(z.argmax(-1)) for z in ranked]  # [R] each
            return chain(torch.stack([roots.tokens, *drafted], 1)[:, : growth.widest])
        found = _grow(head, ranked, roots.tokens, growth)
        return head.kernels[select](joined(found), growth.nodes, growth.widest)

    def levels(self, tables: RowTables, roots: Roots, depth: int) -> list[Tensor]:
        """Head logits [R, Vd] of each level 1 .. depth, in one pass over depth - 1 mask slots a row."""
        head = self.head
        first = head.read(roots.seeds).logits
        slots = depth - 1
        if not slots:
            return [first]
        rows, device = roots.tokens.numel(), roots.tokens.device
        positions = (roots.lengths[:, None] + torch.arange(slots, device=device)).reshape(-1)  # [R * slots], as owners
        owners = roots.owners[:, None].expand(rows, slots).reshape(-1)
        indptr = torch.arange(0, (rows + 1) * slots, slots, dtype=torch.int32)  # [R + 1]
        inputs = attention_inputs(tables, roots.owners, roots.lengths, roots.covered, indptr)
        output = head.forward(
            torch.full_like(positions, self.mask_token),
            self.mask.expand(rows * slots, -1),
            head.rotations(positions),
            tables.slots(owners, positions),
            planned_for(head.attention, inputs),
        )
        return [first, *head.read(output).logits.view(rows, slots, -1).unbind(1)]


@dataclass(frozen=True, slots=True)
class PEagleCheckpoint(OpenedHead):
    """Implements DrafterCheckpoint."""

    mask_token: int
    """The id whose embedding the mask slots read."""

    def load(self, target: LoadedTarget, sizes: Sizes) -> PEagle:
        mask_hidden = _mask_hidden(self.checkpoint)
        return PEagle(self.head(target, sizes), self.mask_token, mask_hidden)


def open_peagle(folder: Path, deployment: Deployment) -> PEagleCheckpoint:
    checkpoint = checkpoint_in(folder, deployment)
    needs = needs_of(checkpoint.config, scratch_slots)
    return PEagleCheckpoint(checkpoint, deployment, needs, mask_token_of(checkpoint))


KIND = Kind("peagle", recognizes=lambda folder: has_tensor(folder, _MASK_HIDDEN), open=open_peagle)


def mask_token_of(checkpoint: HeadCheckpoint) -> int:
    """The id of the mask slots' embedding in the head's embedding table, which the checkpoint must contain. Raises
    ConfigError.
    """
    read, vocabulary = read_config(checkpoint.folder), checkpoint.config.vocabulary
    config = flattened(read) if is_speculators(read) else read
    found: object = next((config[key] for key in MASK_KEYS if isinstance(config.get(key), int)), None)
    if not isinstance(found, int) or not 0 <= found < vocabulary:
        raise ConfigError(
            f"the P-EAGLE head's mask token is {found}; one of {', '.join(MASK_KEYS)} in its config.json must be an "
            f"id of 0 .. {vocabulary - 1}",
            param="spec.head",
        )
    if "embed_tokens.weight" not in checkpoint.weights:
        raise ConfigError(
            "the P-EAGLE head has no embed_tokens.weight, so no trained embedding of its mask token; "
            "the checkpoint is incomplete",
            param="spec.head",
        )
    return found


def _mask_hidden(checkpoint: HeadCheckpoint) -> Tensor:
    """[1, taps * target hidden]; checkpoints put one or two dimensions of size 1 before it."""
    weights, config = checkpoint.weights, checkpoint.config
    wide = len(config.taps) * config.target_hidden
    leading = len(weights.shapes()[_MASK_HIDDEN]) - 1
    return weights.take(_MASK_HIDDEN, (*[1] * leading, wide)).view(1, wide)


def _grow(head: Head, ranked: list[Tensor], roots: Tensor, growth: Growth) -> list[Level]:
    """Candidates of every level: the K best of a level below each kept node of the level before.

    A kept node costs no pass here, so as many are kept as a row can verify: none of the best `widest` nodes is missed.
    """
    topk, found = min(growth.topk, head.config.draft_vocabulary), [rooted(roots)]
    scores, indices, first = found[0].scores, found[0].parents, 1  # scores and indices of the kept nodes: [R, kept]
    for level, values in enumerate(ranked, 1):
        z = values.float() / growth.edge_temperature(level)  # [R, Vd]
        best, ids = z.topk(topk, -1)  # [R, K], as edges
        edges = best - z.logsumexp(-1, keepdim=True)
        shape = (len(edges), scores.shape[1], topk)
        found.append(
            Level(
                tokens=head.target_ids(ids)[:, None].expand(shape).flatten(1),
                scores=below(scores[:, :, None], edges[:, None]).flatten(1),
                parents=indices[:, :, None].expand(shape).flatten(1),
            )
        )
        kept = min(growth.widest - 1, found[-1].scores.shape[1])
        scores, indices = found[-1].scores.topk(kept, -1)
        indices, first = indices + first, first + found[-1].scores.shape[1]
    return found

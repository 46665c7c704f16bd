"""What drafters with a head share: loading it beside its target, and extending it with committed tokens."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from aerie.contracts.errors import ConfigError
from aerie.engine.attention import Attention, make_attention, planned_for
from aerie.engine.attention.inputs import AttentionShape
from aerie.engine.build import multiplies_int8
from aerie.engine.memory import Sizes
from aerie.engine.model.config import ROPE_KINDS
from aerie.engine.model.packing import int8_pays
from aerie.engine.model.projection import Precision
from aerie.engine.model.target import LoadedTarget
from aerie.engine.state.kv_pool import KVPool
from aerie.spec.checkpoints.loader import HeadCheckpoint, load_head, open_head
from aerie.spec.drafters.drafter import Deployment, Needs, Pairs, ScratchSlots
from aerie.spec.heads.config import HeadConfig
from aerie.spec.heads.head import Head


class HeadDrafter:
    """Everything of a Drafter except `draft`."""

    def __init__(self, head: Head, scratch_slots: ScratchSlots) -> None:
        self.head = head
        self.needs = needs_of(head.config, scratch_slots)

    @property
    def attention(self) -> Attention:
        return self.head.attention

    @property
    def draft_to_target(self) -> Tensor | None:
        return self.head.weights.draft_to_target

    @property
    def bytes(self) -> int:
        return self.head.weights.bytes

    @property
    def kv_bytes(self) -> int:
        return self.head.pool.bytes

    def extend(self, pairs: Pairs) -> Tensor:
        """Writes the pairs' KV -> the pre-norm outputs [r, H] of the rows' last pairs."""
        return self.outputs(pairs).index_select(0, pairs.lasts)

    def outputs(self, pairs: Pairs) -> Tensor:
        """Writes the pairs' KV -> pre-norm outputs [T, H]."""
        head = self.head
        planned = planned_for(head.attention, pairs.inputs)
        return head.forward(pairs.tokens, head.fuse(pairs.taps), head.rotations(pairs.positions), pairs.slots, planned)


def needs_of(head: HeadConfig, scratch_slots: ScratchSlots) -> Needs:
    return Needs(
        taps=head.taps,
        seed_width=head.hidden,
        kv_numbers=2 * head.layers * head.kv_heads * head.head_dim,
        draft_vocabulary=head.draft_vocabulary,
        scratch_slots=scratch_slots,
    )


@dataclass(frozen=True, slots=True)
class OpenedHead:
    """Everything of a DrafterCheckpoint except `load`."""

    checkpoint: HeadCheckpoint
    deployment: Deployment
    needs: Needs

    @property
    def format(self) -> str:
        return self.checkpoint.config.source

    @property
    def bytes(self) -> int:
        return self.checkpoint.bytes

    def head(self, target: LoadedTarget, sizes: Sizes) -> Head:
        """The head with its pool. Raises ConfigError."""
        deployment, shape = self.deployment, self.checkpoint.config
        pool = KVPool(
            layers=shape.layers,
            pages=sizes.pages,
            page_size=sizes.page_size,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            dtype=sizes.dtype,
            device=deployment.device,
        )
        attention = make_attention(
            deployment.config.engine.attention,
            AttentionShape(
                shape.heads, shape.kv_heads, shape.head_dim, sizes.page_size, sizes.dtype, deployment.device
            ),
            deployment.kernels,
        )
        own = shape.rope.kind in ROPE_KINDS
        precision = _precision(shape, deployment, own=own)
        weights = load_head(self.checkpoint, target, deployment.kernels, precision)
        if not own:
            from aerie.spec.heads.sglang import SglangHead

            return SglangHead(self.checkpoint.folder, shape, weights, pool, attention, deployment.kernels)
        positions = sizes.max_length + sizes.reserve + 1
        return Head(shape, weights, pool, attention, positions=positions, kernels=deployment.kernels)


def checkpoint_in(folder: Path, deployment: Deployment) -> HeadCheckpoint:
    """Raises ConfigError on a head that cannot be served, or was made for another target."""
    return open_head(
        folder,
        deployment.target,
        deployment.dtype,
        deployment.device,
        dummy=deployment.config.model.weights == "dummy",
        any_rope=deployment.config.engine.kind == "sglang-model",
    )


def _precision(head: HeadConfig, deployment: Deployment, *, own: bool) -> Precision:
    """Of the head's matrices; `own`: Aerie runs its layers. Raises ConfigError if int8 is set and not available."""
    kernels, setting = deployment.kernels, deployment.config.spec.quantization
    can = multiplies_int8(deployment.dtype, kernels)
    if own and setting == "int8" and not can:
        raise ConfigError(
            "spec.quantization is int8, which the C++ kernels of a CPU and Triton's of a GPU compute with, and they "
            "are not in use here; set spec.quantization=auto",
            param="spec.quantization",
        )
    if not own or not can or setting == "none":
        return Precision.STORED
    pays = setting == "int8" or kernels[int8_pays](head.matrices)
    return Precision.INT8 if pays else Precision.STORED

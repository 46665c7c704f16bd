"""The cut to models: what the workers ask of a target, whoever runs it."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.attention.inputs import AttentionInputs
from engine.kv_pool import KVPool
from engine.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """`logits` [wanted, vocabulary] fp32; `taps` [tokens, boundaries * hidden], None where none are taken."""

    logits: Tensor
    taps: Tensor | None


class TargetModel(Protocol):
    """A target with its KV pool. Taps are residual streams entering the layers `boundaries`, before any norm."""

    config: ModelConfig
    pool: KVPool
    boundaries: tuple[int, ...]

    def embed(self, ids: Tensor) -> Tensor:
        """ids [n] -> [n, hidden]."""

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        inputs: AttentionInputs,
        wanted: Tensor | None,
        *,
        taps: bool,
    ) -> TargetOutput:
        """One pass over ids [tokens] at positions [tokens], whose KV goes to slots [tokens]. `wanted` [m]: tokens
        with logits.
        """

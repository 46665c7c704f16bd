"""The cut to models: what the workers ask of a target, whoever runs it."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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


class LoadedTarget(TargetModel, Protocol):
    """A target with weights, as far as a head borrows from it and reports count it."""

    @property
    def bytes(self) -> int: ...

    @property
    def embeddings(self) -> Tensor:
        """[vocabulary, hidden]"""

    @property
    def output_weight(self) -> Tensor:
        """[vocabulary, hidden]"""


@runtime_checkable
class RankedTarget(Protocol):
    """A target that several ranks run at once, each a part of every layer."""

    def agree(self, values: Tensor) -> Tensor:
        """What rank 0 has, on every rank, without a word to the host."""

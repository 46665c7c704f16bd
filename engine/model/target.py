"""The interface to models: what the workers require of a target, whichever engine runs it."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from aerie.engine.attention.inputs import AttentionInputs
from aerie.engine.model.config import ModelConfig
from aerie.engine.state.kv_pool import KVPool


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """`logits` [wanted, vocabulary] fp32; `taps` [tokens, boundaries * hidden], None if not requested."""

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
        """One pass over ids [tokens] at positions [tokens], whose KV goes to slots [tokens]. `wanted` [m]: indices of
        the tokens that need logits.
        """


class LoadedTarget(TargetModel, Protocol):
    """A target with weights, as far as a head borrows them and reports count them."""

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
    """A target that several ranks run together, each with a part of every layer."""

    @property
    def ranks(self) -> int: ...

    def agree(self, values: Tensor) -> Tensor:
        """Rank 0's values, on every rank, without a host sync."""

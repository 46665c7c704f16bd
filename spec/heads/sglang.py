"""A head whose layers SGLang runs, for RoPE kinds that Aerie does not compute (YaRN and the like).

Loaded, checked and read as every head is; only its layers are SGLang's `llama_eagle3`. Built beside an
SGLang target, and drafted from like any other head.
"""

from pathlib import Path

from torch import Tensor

from aerie.engine.attention import Attention, Planned
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.sglang.build import load_sglang_draft
from aerie.engine.state.kv_pool import KVPool
from aerie.spec.heads.config import HeadConfig
from aerie.spec.heads.head import Head, HeadWeights


class SglangHead(Head):
    """Differs in `forward`, which takes positions in place of RoPE rotations."""

    def __init__(
        self,
        folder: Path,
        config: HeadConfig,
        weights: HeadWeights,
        pool: KVPool,
        attention: Attention,
        kernels: Kernels = REFERENCES,
    ) -> None:
        self.config = config
        self.pool = pool
        self.attention = attention
        self.weights = weights
        self.kernels = kernels
        self._draft = load_sglang_draft(folder, weights.embeddings, pool, attention)

    def rotations(self, positions: Tensor) -> Tensor:
        """positions [T] as they are."""
        return positions

    def forward(self, tokens: Tensor, hidden: Tensor, rotations: Tensor, slots: Tensor, planned: Planned) -> Tensor:
        """As Head.forward, with positions [T] as `rotations`."""
        return self._draft.forward(tokens, hidden, rotations, slots, planned)

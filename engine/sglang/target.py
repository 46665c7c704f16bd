"""A model of SGLang as the engine's TargetModel: SGLang's layers and weights with Aerie's pages, masks and rows.

Built by `engine.sglang.build`, called by both workers. Boundary b is the input of layer b, which SGLang counts as the
output of layer b - 1.
"""

from typing import Any

import torch
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.runtime_context import get_parallel
from torch import Tensor

from aerie.engine.attention import Attention, planned_for
from aerie.engine.attention.inputs import AttentionInputs
from aerie.engine.model.config import ModelConfig
from aerie.engine.model.target import TargetOutput
from aerie.engine.sglang.attention import PagedAttention
from aerie.engine.sglang.batches import make_batch
from aerie.engine.state.kv_pool import KVPool


class SglangTarget:
    """Implements TargetModel over a ModelRunner."""

    def __init__(
        self, config: ModelConfig, runner: Any, backend: PagedAttention, pool: KVPool, boundaries: tuple[int, ...] = ()
    ) -> None:
        self.config = config
        self.pool = pool
        self.boundaries = boundaries
        self._runner = runner
        self._backend = backend
        self._group = get_parallel().tp_group
        self._embeddings = self._output = torch.empty(0, config.hidden_size)
        if boundaries:
            runner.model.set_eagle3_layers_to_capture([boundary - 1 for boundary in boundaries])
            self._embeddings, self._output = (self._whole(part) for part in runner.model.get_embed_and_head())

    @property
    def attention(self) -> Attention:
        """Aerie's, which plans passes and may be captured in graphs."""
        return self._backend.attention

    @property
    def bytes(self) -> int:
        """Bytes of all weights on this rank."""
        return sum(weight.numel() * weight.element_size() for weight in self._runner.model.parameters())

    @property
    def embeddings(self) -> Tensor:
        """[vocabulary, hidden]: shared with a head that has no embeddings."""
        return self._embeddings

    @property
    def output_weight(self) -> Tensor:
        """[vocabulary, hidden]: shared with a head that has no output layer."""
        return self._output

    def _whole(self, part: Tensor) -> Tensor:
        """This rank's rows of a [vocabulary, hidden] table -> all rows, without SGLang's padding."""
        return self._group.all_gather(part.data, dim=0)[: self.config.vocabulary]

    def embed(self, ids: Tensor) -> Tensor:
        return self._embeddings.index_select(0, ids)

    @property
    def ranks(self) -> int:
        return int(self._group.world_size)

    def agree(self, values: Tensor) -> Tensor:
        """Broadcasts rank 0's values on the device; returns `values` unchanged on a single rank."""
        return values if self._group.world_size == 1 else self._group.broadcast(values.contiguous(), src=0)

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
        self._backend.begin(planned_for(self._backend.attention, inputs), slots)
        batch = make_batch(ids, positions, slots, inputs, wanted, taps=taps)
        out = self._runner.forward(batch).logits_output
        logits: Tensor = out.next_token_logits[:, : self.config.vocabulary]
        return TargetOutput(logits.float(), out.hidden_states if taps else None)


def attention_layers(model: Any) -> list[Any]:
    """Every attention layer of a loaded model."""
    return [module for module in model.modules() if isinstance(module, RadixAttention)]

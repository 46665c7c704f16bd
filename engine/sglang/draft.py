"""SGLang's EAGLE-3 head, `llama_eagle3`, over Aerie's attention and KV pool.

Drafts with heads in formats that only SGLang reads, and serves as the reference for tests of Aerie's head. Loaded after
a runner, whose settings and process groups it shares.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3
from sglang.srt.utils.common import reserve_rope_cache_for_long_sequences
from sglang.srt.utils.hf_transformers_utils import get_config
from torch import Tensor

from aerie.engine.attention import Planned
from aerie.engine.sglang.attention import PagedAttention
from aerie.engine.sglang.batches import draft_batch


class SglangDraft:
    """The head in `folder`; its layers are numbered from 0 in the pool of `backend`."""

    def __init__(self, folder: Path, backend: PagedAttention, dtype: torch.dtype, device: torch.device) -> None:
        config = get_config(str(folder), trust_remote_code=False)
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with device:
                model = LlamaForCausalLMEagle3(config)
        finally:
            torch.set_default_dtype(before)
        model.load_weights(_tensors(folder))
        reserve_rope_cache_for_long_sequences(model, config)  # as long as the target's, regardless of the head's config
        self._model: Any = model.eval()
        self._backend = backend

    @property
    def draft_to_target(self) -> Tensor | None:
        """[draft vocabulary] int64; None for the identity."""
        ids: Tensor | None = self._model.get_hot_token_id()
        return ids

    def share_embeddings(self, embeddings: Tensor) -> None:
        """Sets the target's embeddings [vocabulary, hidden] in a head without embeddings."""
        self._model.model.embed_tokens.weight.data = embeddings

    def fuse(self, taps: Tensor) -> Tensor:
        """taps [tokens, n * target hidden] -> [tokens, hidden]."""
        model = self._model.model
        if model.input_norm is not None:
            taps = model.input_norm(taps)
        if model.fc_norm is not None:
            chunks = taps.chunk(model.num_aux_hidden_states, dim=-1)  # [tokens, target hidden] each
            taps = torch.cat([norm(chunk) for norm, chunk in zip(model.fc_norm, chunks, strict=True)], -1)
        fused: Tensor = model.fc(taps)
        return fused

    def forward(self, tokens: Tensor, hidden: Tensor, positions: Tensor, slots: Tensor, planned: Planned) -> Tensor:
        """Target ids [tokens], hidden [tokens, hidden] -> pre-norm output [tokens, hidden]. Writes KV to `slots`."""
        model, residual = self._model.model, None
        self._backend.begin(planned, slots)
        embeds, batch = model.embed_tokens(tokens), draft_batch(tokens, positions, slots)
        with forward_context(ForwardContext(attn_backend=self._backend)):
            for layer in model.layers:
                hidden, residual = layer(positions, embeds, hidden, batch, residual)
        return hidden if residual is None else hidden + residual

    def read(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Pre-norm output [tokens, hidden] -> draft logits [tokens, draft vocabulary] and the next level's input."""
        model = self._model.model
        normed = model.norm(output)
        logits: Tensor = torch.nn.functional.linear(normed, self._model.lm_head.weight)
        logits = logits[:, : self._model.config.draft_vocab_size]
        return logits, normed if model.norm_output else output


def _tensors(folder: Path) -> Any:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  a safetensors file is not a mapping
                yield name, file.get_tensor(name)

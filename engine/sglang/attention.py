"""Aerie's attention and KV pool as a backend of SGLang: SGLang's layers pass in queries, keys and values; masks, pages
and plans are Aerie's.

Registered under `NAME` before the runner is built. `engine.sglang.target` calls `begin` before each pass; nothing reads
SGLang's batch, so no step waits for lengths on the host.
"""

from typing import Any

import torch
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from torch import Tensor

from aerie.engine.attention import Attention, Planned
from aerie.engine.state.kv_pool import KVPool

NAME = "aerie"


class PagedAttention(AttentionBackend):  # type: ignore[misc]  # sglang is untyped here
    """SGLang's AttentionBackend over `pool`."""

    needs_cpu_seq_lens = False

    def __init__(self, attention: Attention, pool: KVPool) -> None:
        super().__init__()
        self.req_to_token_pool = None
        self.token_to_kv_pool = None
        self.attention = attention
        self._pool = pool
        self._planned: Planned = None
        self._slots: Tensor = torch.empty(0, dtype=torch.int64)

    def begin(self, planned: Planned, slots: Tensor) -> None:
        """Starts the next pass with its plan from `attention` and the slots [tokens] of its keys and values."""
        self._planned = planned
        self._slots = slots

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Does nothing: `begin` has planned the pass."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> Tensor:
        """q [tokens, heads * head_dim], k and v [tokens, kv_heads, head_dim] -> as q, in the model's dtype.

        Some models compute queries and keys in a different dtype.
        """
        pool, dtype = self._pool, v.dtype
        pool.write(layer.layer_id, self._slots, torch.cat((k.to(dtype), v), 1))
        query = q.to(dtype).view(-1, layer.tp_q_head_num, layer.qk_head_dim)  # [tokens, heads, head_dim]
        return self.attention.run(self._planned, query, pool, layer.layer_id).reshape(q.shape[0], -1)

    def support_triton(self) -> bool:
        return False


def register(backend: PagedAttention) -> None:
    """Gives this backend to every runner that asks for the backend `NAME`."""
    register_attention_backend(NAME)(lambda _runner: backend)

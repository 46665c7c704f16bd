"""Aerie's variant of FlashInfer's FA2 kernel: masks by true prefix lengths and ancestor words on the device.

Compiled by engine/attention/flashinfer_modules.py, once for each dtype and head size. The stock custom mask takes one
bit for every pair of query and position, and its packed form is read from the wrong place if there are several rows.
Here each query has one 64-bit word, the prefix is a comparison, and pages planned beyond the true length are hidden
without a host sync. All levels of a draft share one schedule, since a word may point past the queries of a pass.
"""

import hashlib
from typing import Any

import torch

from aerie.engine.attention.inputs import AttentionShape

DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}
"""FlashInfer's prefill kernels take 16-bit queries."""
HEAD_DIMS = (64, 128, 256)

_TENSORS = {"words": "int64_t", "prefix_lens": "int64_t"}
_SCALARS = {"sm_scale": "double", "causal": "int64_t"}
"""The variant's parameters beside FlashInfer's own, in order."""
_NAME = "AerieAttention"
_SOURCE = """
#include <flashinfer/attention/variants.cuh>
struct AerieAttention : AttentionVariantBase {
  static constexpr bool use_softmax = true;
  uint32_t qo_len, kv_len, window_left, prefix;
  bool causal;
  float sm_scale_log2;
  const int64_t* row_words;

  template <typename Params>
  __device__ __host__ AerieAttention(const Params& params, uint32_t row, uint8_t* shared) {
    qo_len = params.get_qo_len(row);
    kv_len = params.get_kv_len(row);
    window_left = kv_len;
    prefix = params.prefix_lens[row];
    causal = params.causal != 0;
    sm_scale_log2 = params.sm_scale * math::log2e;
    row_words = params.words + params.q_indptr[row];
  }

  REGISTER_LOGITS_MASK(params, row, query, position, query_head, kv_head, {
    if (position < prefix) return true;
    const uint32_t node = position - prefix;
    if (causal) return node <= query;
    return node < 64 && query < qo_len && ((static_cast<uint64_t>(row_words[query]) >> node) & 1) != 0;
  })
};
"""


def refusal(shape: AttentionShape) -> str | None:
    """Why FlashInfer cannot serve a shape; None if it can."""
    if shape.dtype not in DTYPES:
        return f"its queries have 16 bits and the model computes in {str(shape.dtype).removeprefix('torch.')}"
    if shape.head_dim not in HEAD_DIMS:
        return f"its head sizes are {', '.join(map(str, HEAD_DIMS))} and the model's is {shape.head_dim}"
    if shape.heads % shape.kv_heads:
        return f"{shape.heads} query heads do not divide among {shape.kv_heads} KV heads"
    return None


def module_name(dtype: torch.dtype, head_dim: int) -> str:
    """Contains the dtype, the head size and a digest of this source, so that a module of another source is never
    loaded.
    """
    digest = hashlib.sha256(f"{_TENSORS}{_SCALARS}{_SOURCE}".encode()).hexdigest()[:8]
    return f"aerie_attention_{DTYPES[dtype]}_d{head_dim}_{digest}"


def jit_arguments(dtype: torch.dtype, head_dim: int) -> tuple[Any, ...]:
    """Arguments of FlashInfer's generator of customized batch prefill modules, after the backend's name."""
    return (
        module_name(dtype, head_dim),
        dtype,
        dtype,
        dtype,
        torch.int32,
        head_dim,
        head_dim,
        list(_TENSORS),
        list(_TENSORS.values()),
        list(_SCALARS),
        list(_SCALARS.values()),
        _NAME,
        _SOURCE,
    )

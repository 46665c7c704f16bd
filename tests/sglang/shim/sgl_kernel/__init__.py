"""The operators that SGLang's EAGLE-3 tree worker needs on a CPU, written in torch; every other one raises.

An oracle of tokens and acceptance, never of speed: rows are looped over in Python. The names and the order of
arguments are SGLang's. Goes on PYTHONPATH before `tests/sglang/stub`.
"""

from collections.abc import Callable
from typing import NoReturn

import torch
from raising import raising

from sgl_kernel.attention import decode_attention_cpu, extend_attention_cpu
from sgl_kernel.slots import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
)
from sgl_kernel.trees import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__version__ = "shim"
__getattr__ = raising
__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "verify_tree_greedy_cpu",
]


class _Operators:
    """SGLang reaches its two attention kernels through `torch.ops.sgl_kernel`, and model files look up others there."""

    decode_attention_cpu = staticmethod(decode_attention_cpu)
    extend_attention_cpu = staticmethod(extend_attention_cpu)

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if not name.endswith("_cpu"):
            raise AttributeError(name)
        return raising(name)


torch.ops.sgl_kernel = _Operators()

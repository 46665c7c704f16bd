"""Attention on a CPU in C++ (native/src/attention.cpp): keys are read in place, and a query's result does not depend on
the rest of the batch.

Queries are split among the library's threads, so their number changes no result.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.contracts.errors import ConfigError
from aerie.engine.attention import Attention
from aerie.engine.attention.cpu import CpuAttention
from aerie.engine.attention.inputs import AttentionInputs, AttentionShape
from aerie.engine.state.kv_pool import KVPool
from aerie.native.library import library, missing
from aerie.native.numbers import LANES, TYPES

_DIMS = (*range(LANES, 129, LANES), 256)


@dataclass(frozen=True, slots=True)
class _Plan:
    inputs: AttentionInputs
    addresses: tuple[int, int, int, int]
    """Addresses of query bounds, page bounds, pages and prefix lengths, which `inputs` keeps alive."""
    rows: int
    words: Tensor | None


def addresses_of(planned: object) -> tuple[tuple[int | None, ...], int, int] | None:
    """For kernels that run attention themselves: the addresses of query bounds, page bounds, pages, prefix lengths and
    words; the number of rows; and the page size. None for a plan that such kernels cannot run.
    """
    if not isinstance(planned, _Plan):
        return None
    words = None if planned.words is None else planned.words.data_ptr()
    return (*planned.addresses, words), planned.rows, planned.inputs.page_size


def refusal(shape: AttentionShape | None) -> str | None:
    """Why this backend cannot serve the shape; None if it can."""
    if shape is None or shape.device.type != "cpu":
        return "its kernels are a CPU's"
    if shape.dtype not in TYPES:
        return f"it computes in float32 and bfloat16, and the model in {str(shape.dtype).removeprefix('torch.')}"
    if shape.head_dim not in _DIMS:
        return f"its head sizes are {', '.join(map(str, _DIMS))} and the model's is {shape.head_dim}"
    return missing()


def host_attention(shape: AttentionShape | None) -> Attention:
    """Replaces engine.attention.host_attention."""
    return CppAttention() if refusal(shape) is None else CpuAttention()


def compiled_attention(shape: AttentionShape | None) -> Attention:
    """Replaces engine.attention.compiled_attention."""
    why = refusal(shape)
    if why is not None:
        raise ConfigError(f"engine.attention is cpp, and {why}; set engine.attention=auto", param="engine.attention")
    return CppAttention()


class CppAttention:
    """Serves the shapes that `refusal` accepts."""

    name = "cpp"

    def plan(self, inputs: AttentionInputs) -> object:
        rows = inputs.prefix_lens.shape[0]
        assert inputs.prefix_lens.dtype is torch.int64  # a kernel gets only addresses and cannot check it
        arrays = (inputs.qo_indptr, inputs.kv_indptr, inputs.kv_indices, inputs.prefix_lens)
        first, second, third, fourth = (array.data_ptr() for array in arrays)
        return _Plan(inputs, (first, second, third, fourth), rows, inputs.words)

    def see(self, planned: object, words: Tensor) -> object:
        assert isinstance(planned, _Plan)
        return _Plan(planned.inputs, planned.addresses, planned.rows, words)

    def run(self, planned: object, query: Tensor, pool: KVPool, layer: int) -> Tensor:
        assert isinstance(planned, _Plan)
        tokens, heads, dim = query.shape
        words = planned.words
        wide, out = query.float(), torch.empty(tokens, heads, dim)
        library().attended(
            out.data_ptr(),
            wide.data_ptr(),
            pool.slots(layer).data_ptr(),
            *planned.addresses,
            None if words is None else words.data_ptr(),
            planned.rows,
            wide.stride(0),
            heads,
            pool.keys.shape[2],
            dim,
            planned.inputs.page_size,
            pool.keys.dtype is torch.bfloat16,
        )
        return out.to(query.dtype)

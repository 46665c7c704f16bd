"""Other ways to verify trees with FlashInfer, to benchmark against Aerie's own mask variant; the server never uses
them.

Called by probe/attention_cases.py. Each prepares a batch through the wheel's public calls, which compile what they
need, and returns a function from queries to outputs. Rows must be chains with equal node counts: all of these ways
support them, and trees cost them the same.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from aerie.engine.attention.inputs import AttentionInputs, AttentionShape
from aerie.engine.state.kv_pool import KVPool

Run = Callable[[Tensor], Tensor]
SLOW = frozenset({"prefix by FA3, then nodes"})
"""Names of the ways whose kernels take minutes to compile."""
_WORKSPACE = 512 << 20


def options(shape: AttentionShape, inputs: AttentionInputs, pool: KVPool) -> Iterator[tuple[str, Callable[[], Run]]]:
    """Name and preparation of each way. `pool` has one layer; a row's pages end exactly at its last node."""
    yield "stock mask", lambda: _stock_mask(shape, inputs, pool)
    yield "prefix, then nodes", lambda: _prefix_then_nodes(shape, inputs, pool, "fa2")
    yield "prefix by FA3, then nodes", lambda: _prefix_then_nodes(shape, inputs, pool, "fa3")
    yield "a row for each node", lambda: _row_for_each_node(shape, inputs, pool)
    yield "XQA", lambda: _xqa(shape, inputs, pool)


def _stock_mask(shape: AttentionShape, inputs: AttentionInputs, pool: KVPool) -> Run:
    """FlashInfer's own custom mask: one bit for every pair of query and position."""
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    nodes, lengths = _nodes(inputs), _lengths(inputs)
    masks = []
    for length in lengths:
        places = torch.arange(length, device=shape.device)
        own = torch.arange(length - nodes, length, device=shape.device)
        masks.append((places[None, :] <= own[:, None]).flatten())  # [nodes * length]
    wrapper = BatchPrefillWithPagedKVCacheWrapper(_workspace(shape), "NHD", backend="fa2")
    wrapper.plan(
        inputs.qo_indptr,
        inputs.kv_indptr,
        inputs.kv_indices,
        inputs.last_page_len,
        *_heads(shape),
        shape.page_size,
        custom_mask=torch.cat(masks),
        q_data_type=shape.dtype,
        kv_data_type=shape.dtype,
    )
    kept = pool.paged(0)
    return lambda query: wrapper.run(query, kept)


def _prefix_then_nodes(shape: AttentionShape, inputs: AttentionInputs, pool: KVPool, backend: str) -> Run:
    """Two merged passes: all of a row's nodes over the prefix without a mask, then the nodes over each other."""
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper, BatchPrefillWithRaggedKVCacheWrapper, merge_state

    nodes, lengths, size = _nodes(inputs), _lengths(inputs), shape.page_size
    pages = [-(-(length - nodes) // size) for length in lengths]
    starts = inputs.kv_indptr[:-1].tolist()
    taken = [inputs.kv_indices[start : start + count] for start, count in zip(starts, pages, strict=True)]
    before = BatchPrefillWithPagedKVCacheWrapper(_workspace(shape), "NHD", backend=backend)
    before.plan(
        inputs.qo_indptr,
        torch.tensor([0, *pages]).cumsum(0).int(),
        torch.cat(taken),
        torch.tensor([n - nodes - (p - 1) * size for n, p in zip(lengths, pages, strict=True)], dtype=torch.int32),
        *_heads(shape),
        size,
        q_data_type=shape.dtype,
        kv_data_type=shape.dtype,
    )
    among = BatchPrefillWithRaggedKVCacheWrapper(_workspace(shape), "NHD", backend="fa2")
    among.plan(
        inputs.qo_indptr,
        inputs.qo_indptr,
        *_heads(shape),
        causal=True,
        q_data_type=shape.dtype,
        kv_data_type=shape.dtype,
    )
    kept = pool.paged(0)
    # keys, values: [rows * nodes, kv_heads, head_dim] each
    keys, values = (side[0][_node_slots(inputs, lengths, nodes)].contiguous() for side in (pool.keys, pool.values))

    def run(query: Tensor) -> Tensor:
        first = before.run(query, kept, return_lse=True)
        return merge_state(*first, *among.run(query, keys, values, return_lse=True))[0]

    return run


def _row_for_each_node(shape: AttentionShape, inputs: AttentionInputs, pool: KVPool) -> Run:
    """Plain decoding of rows * nodes rows, each of which reads its prefix again."""
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    nodes, size, starts = _nodes(inputs), shape.page_size, inputs.kv_indptr.tolist()
    own = [length - nodes + 1 + node for length in _lengths(inputs) for node in range(nodes)]
    pages = [-(-length // size) for length in own]
    taken = [inputs.kv_indices[starts[place // nodes] :][:count] for place, count in enumerate(pages)]
    wrapper = BatchDecodeWithPagedKVCacheWrapper(_workspace(shape), "NHD", use_tensor_cores=True)
    wrapper.plan(
        torch.tensor([0, *pages]).cumsum(0).int(),
        torch.cat(taken),
        torch.tensor([n - (p - 1) * size for n, p in zip(own, pages, strict=True)], dtype=torch.int32),
        *_heads(shape),
        size,
        q_data_type=shape.dtype,
        kv_data_type=shape.dtype,
    )
    kept = pool.paged(0)
    return lambda query: wrapper.run(query, kept)


def _xqa(shape: AttentionShape, inputs: AttentionInputs, pool: KVPool) -> Run:
    """TensorRT-LLM's kernel: no plan, and one bit for every pair of nodes."""
    from flashinfer.decode import xqa_batch_decode_with_kv_cache

    nodes, lengths = _nodes(inputs), _lengths(inputs)
    assert inputs.words is not None
    # halves of the words: [rows, nodes, 2 * words of 32 bits]
    halves = inputs.words.view(torch.int16).view(len(lengths), nodes, 4)[:, :, : 2 * -(-nodes // 32)]
    mask, kept = halves.contiguous().view(torch.uint16), tuple(side.contiguous() for side in pool.paged(0))
    tables = inputs.kv_indices.view(len(lengths), -1)  # [rows, pages of a row]
    totals, workspace = torch.tensor(lengths, dtype=torch.int32, device=shape.device), _workspace(shape)
    return lambda query: xqa_batch_decode_with_kv_cache(
        query,
        kept,
        workspace,
        tables,
        totals,
        max(lengths),
        bmm1_scale=shape.head_dim**-0.5,
        bmm2_scale=1.0,
        q_len_per_req=nodes,
        mask=mask,
    )


def _workspace(shape: AttentionShape) -> Tensor:
    return torch.zeros(_WORKSPACE, dtype=torch.uint8, device=shape.device)


def _heads(shape: AttentionShape) -> tuple[int, int, int]:
    return shape.heads, shape.kv_heads, shape.head_dim


def _nodes(inputs: AttentionInputs) -> int:
    return int(inputs.qo_indptr[1])


def _lengths(inputs: AttentionInputs) -> list[int]:
    """Positions of each row, including its nodes."""
    pages = inputs.kv_indptr.diff()
    return ((pages - 1) * inputs.page_size + inputs.last_page_len).tolist()


def _node_slots(inputs: AttentionInputs, lengths: list[int], nodes: int) -> Tensor:
    """[rows * nodes] pool slots of all nodes."""
    size, starts = inputs.page_size, inputs.kv_indptr.tolist()
    device = inputs.kv_indices.device
    own = [torch.arange(length - nodes, length, device=device) for length in lengths]
    return torch.cat(
        [inputs.kv_indices[start + p // size].long() * size + p % size for start, p in zip(starts, own, strict=False)]
    )

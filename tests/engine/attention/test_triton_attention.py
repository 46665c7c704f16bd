"""Triton's attention equals the reference on the golden cases: whole, split, of every dtype, held and renewed."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from aerie.engine.attention import make_attention
from aerie.engine.attention.inputs import AttentionInputs, AttentionShape
from aerie.engine.state.kv_pool import KVPool
from tests.engine.attention import attention_cases
from tests.engine.attention.attention_cases import CASES, HEADS, KV_HEADS, POISON, fill, fixed_pages, tree_words
from tests.engine.triton_here import DEVICE, GPU, moved, needs_triton

if TYPE_CHECKING:
    from aerie.engine.attention.triton import TritonAttention

pytestmark = needs_triton


def backend(page: int, *, head_dim: int = 16, dtype: torch.dtype = torch.float32) -> "TritonAttention":
    from aerie.engine.attention.triton import TritonAttention

    return TritonAttention(AttentionShape(HEADS, KV_HEADS, head_dim, page, dtype, DEVICE))


def case(lengths: list[int], counts: list[int], **shape: Any) -> tuple[AttentionInputs, KVPool]:
    return moved(*attention_cases.case(lengths, counts, **shape))


def expected(inputs: AttentionInputs, query: torch.Tensor, pool: KVPool, layer: int = 1) -> torch.Tensor:
    reference = make_attention("reference")
    return reference.run(reference.plan(inputs), query, pool, layer)


@pytest.mark.parametrize(("shape", "page", "tree"), CASES if GPU else CASES[::3])
def test_equals_reference(shape: tuple[list[int], list[int]], page: int, tree: bool) -> None:
    lengths, counts = shape
    inputs, pool = case(lengths, counts, page=page, tree=tree)
    query = torch.randn(sum(counts), HEADS, 16, device=DEVICE)
    triton = backend(page)
    answer = triton.run(triton.plan(inputs), query, pool, 1)
    torch.testing.assert_close(answer, expected(inputs, query, pool), atol=1e-5, rtol=1e-4)
    assert answer.abs().max() < POISON / 10, "a poisoned slot was seen"


@pytest.mark.parametrize(("tree", "splits"), [(False, 2), (True, 4)])
def test_splits_are_merged(tree: bool, splits: int) -> None:
    """Splits beyond a short row's end hold nothing and must add nothing."""
    inputs, pool = case([150, 0], [2, 1], page=16, tree=tree)
    query = torch.randn(3, HEADS, 16, device=DEVICE)
    triton = backend(16)
    planned = triton.plan(inputs)
    planned.splits = splits
    answer = triton.run(planned, query, pool, 1)
    torch.testing.assert_close(answer, expected(inputs, query, pool), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("dtype", "head_dim"), [(torch.bfloat16, 64), (torch.float16, 128), (torch.float32, 80)])
def test_dtypes_and_head_sizes(dtype: torch.dtype, head_dim: int) -> None:
    if dtype == torch.bfloat16 and not GPU:
        pytest.skip("Triton's interpreter does not compute in bfloat16")
    inputs, pool = case([40, 7], [5, 8], page=16, tree=True, head_dim=head_dim, dtype=dtype)
    query = torch.randn(13, HEADS, head_dim, device=DEVICE).to(dtype)
    triton = backend(16, head_dim=head_dim, dtype=dtype)
    answer = triton.run(triton.plan(inputs), query, pool, 1)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(answer, expected(inputs, query, pool), atol=tolerance, rtol=tolerance)


def test_queries_may_be_a_part_of_what_a_projection_gave() -> None:
    inputs, pool = case([9, 21], [3, 3], page=16, tree=False)
    merged = torch.randn(6, HEADS + 2 * KV_HEADS, 16, device=DEVICE)
    triton = backend(16)
    answer = triton.run(triton.plan(inputs), merged[:, :HEADS], pool, 1)
    torch.testing.assert_close(answer, expected(inputs, merged[:, :HEADS], pool), atol=1e-5, rtol=1e-4)


def test_levels_of_a_draft_share_a_plan() -> None:
    inputs, pool = case([33, 5], [4, 4], page=16, tree=False)
    query, words = torch.randn(8, HEADS, 16, device=DEVICE), tree_words([4, 4], 7).to(DEVICE)
    triton = backend(16)
    answer = triton.run(triton.see(triton.plan(inputs), words), query, pool, 1)
    torch.testing.assert_close(answer, expected(replace(inputs, words=words), query, pool), atol=1e-5, rtol=1e-4)


def test_a_held_plan_serves_other_pages_and_lengths() -> None:
    """What a captured graph relies on: the same addresses and grid, filled anew."""
    first, _ = case([33, 5], [4, 4], page=16, tree=True)
    second, pool = case([90, 40], [4, 4], page=16, tree=True)
    triton = backend(16)
    lengths, pages = first.prefix_lens.clone(), fixed_pages(first, 32)
    held = triton.hold(replace(first, prefix_lens=lengths), pages, split=True)
    addresses = [tensor.data_ptr() for tensor in (held.kv_indices, held.kv_indptr, held.tile_rows)]
    fill(pages, second)
    triton.renew(held, second.kv_indptr)
    lengths.copy_(second.prefix_lens)
    query = torch.randn(8, HEADS, 16, device=DEVICE)
    answer = triton.run(held, query, pool, 1)
    torch.testing.assert_close(answer, expected(second, query, pool), atol=1e-5, rtol=1e-4)
    assert addresses == [tensor.data_ptr() for tensor in (held.kv_indices, held.kv_indptr, held.tile_rows)]


def test_a_plan_for_short_rows_is_not_split() -> None:
    """One launch a layer less: nothing is merged."""
    inputs, pool = case([33], [4], page=16, tree=True)
    triton, pages = backend(16), fixed_pages(inputs, 4096)
    assert triton.splits(1, 4) and not triton.splits(512, 64), "so many fill any device"
    split, whole = (triton.hold(inputs, pages, split=split) for split in (True, False))
    assert split.splits > 1 and whole.splits == 1
    query = torch.randn(4, HEADS, 16, device=DEVICE)
    for held in (split, whole):
        torch.testing.assert_close(
            triton.run(held, query, pool, 1), expected(inputs, query, pool), atol=1e-5, rtol=1e-4
        )

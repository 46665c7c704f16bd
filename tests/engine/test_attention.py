"""The CPU backend equals the reference on golden cases: ragged rows, upper bounds, trees, poisoned slots."""

import itertools

import numpy as np
import pytest
import torch

from engine.attention import make_attention
from engine.attention.inputs import AttentionInputs
from engine.kv_pool import KVPool

POISON = 1e4


def tree_words(counts: list[int], seed: int) -> torch.Tensor:
    """Ancestor words of random trees, parents first."""
    generator = np.random.default_rng(seed)
    words = []
    for count in counts:
        row: list[int] = []
        for node in range(count):
            parent = row[int(generator.integers(0, node))] if node else 0
            row.append(parent | 1 << node)
        words += [word - (1 << 64) if word >> 63 else word for word in row]
    return torch.tensor(words, dtype=torch.int64)


def case(
    lengths: list[int], counts: list[int], *, page: int, tree: bool, slack: int = 5
) -> tuple[AttentionInputs, KVPool]:
    """Rows of these true lengths and query counts; pages cover `slack` more than they hold, unowned slots are
    poisoned.
    """
    torch.manual_seed(len(lengths) + page)
    page_counts = [-(-(n + c + slack) // page) for n, c in zip(lengths, counts, strict=True)]
    order = torch.randperm(sum(page_counts)) + 1
    pool = KVPool(layers=2, pages=sum(page_counts) + 1, page_size=page, kv_heads=2, head_dim=16, dtype=torch.float32)
    pool.keys.uniform_(-1, 1).mul_(POISON)
    pool.values.uniform_(-1, 1).mul_(POISON)
    indptr = np.cumsum([0, *page_counts])
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        pages = order[indptr[row] : indptr[row + 1]]
        slots = (pages[:, None] * page + torch.arange(page)).flatten()[: length + count]
        pool.keys[:, slots] = torch.randn(2, slots.numel(), 2, 16)
        pool.values[:, slots] = torch.randn(2, slots.numel(), 2, 16)
    inputs = AttentionInputs(
        qo_indptr=torch.tensor(np.cumsum([0, *counts]), dtype=torch.int32),
        kv_indptr=torch.tensor(indptr, dtype=torch.int32),
        kv_indices=order.int(),
        last_page_len=torch.tensor(
            [n + c + slack - (p - 1) * page for n, c, p in zip(lengths, counts, page_counts, strict=True)],
            dtype=torch.int32,
        ),
        prefix_lens=torch.tensor(lengths),
        words=tree_words(counts, 1) if tree else None,
        page_size=page,
    )
    return inputs, pool


SHAPES = [
    ([0], [1]),
    ([1], [1]),
    ([127], [64]),
    ([128, 0, 15, 16], [1, 8, 16, 3]),
    ([0, 31, 200], [64, 64, 64]),
    (list(range(32)), [1] * 32),
    (list(range(0, 64, 8)), [1, 8, 16, 32, 64, 2, 5, 7]),
]


@pytest.mark.parametrize(("shape", "page", "tree"), list(itertools.product(SHAPES, [1, 16], [False, True])))
def test_cpu_equals_reference(shape: tuple[list[int], list[int]], page: int, tree: bool) -> None:
    lengths, counts = shape
    inputs, pool = case(lengths, counts, page=page, tree=tree)
    query = torch.randn(sum(counts), 4, 16)
    reference, cpu = make_attention("reference"), make_attention("cpu")
    planned = cpu.plan(inputs)
    for layer in range(2):
        expected = reference.run(reference.plan(inputs), query, pool, layer)
        torch.testing.assert_close(cpu.run(planned, query, pool, layer), expected, atol=1e-5, rtol=1e-4)
        assert expected.abs().max() < POISON / 10, "a poisoned slot was seen"


def test_move_gathers_before_it_writes() -> None:
    pool = KVPool(layers=1, pages=2, page_size=4, kv_heads=1, head_dim=1, dtype=torch.float32)
    pool.keys[0, :, 0, 0] = torch.arange(8.0)
    pool.move(torch.tensor([5, 6, 7]), torch.tensor([4, 5, 6]))
    assert pool.keys[0, :, 0, 0].tolist() == [0, 1, 2, 3, 5, 6, 7, 7]

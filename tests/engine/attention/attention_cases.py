"""The golden cases that every attention backend must answer as the reference does.

Ragged rows, upper bounds, trees, and slots that no query may see, poisoned with values that would show.
"""

import itertools

import numpy as np
import torch

from aerie.engine.attention.inputs import AttentionInputs, FixedPages
from aerie.engine.state.kv_pool import KVPool

POISON = 1e4
HEADS, KV_HEADS = 4, 2
SHAPES = [
    ([0], [1]),
    ([1], [1]),
    ([127], [64]),
    ([128, 0, 15, 16], [1, 8, 16, 3]),
    ([0, 31, 200], [64, 64, 64]),
    (list(range(32)), [1] * 32),
    (list(range(0, 64, 8)), [1, 8, 16, 32, 64, 2, 5, 7]),
]
"""True lengths and query counts of a batch's rows."""
CASES = list(itertools.product(SHAPES, [1, 16], [False, True]))
"""Shape, page size, and whether the queries are trees."""


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
    lengths: list[int],
    counts: list[int],
    *,
    page: int,
    tree: bool,
    slack: int = 5,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
) -> tuple[AttentionInputs, KVPool]:
    """Rows of these true lengths and query counts; pages cover `slack` more than they hold, unowned slots are
    poisoned.
    """
    torch.manual_seed(len(lengths) + page)
    page_counts = [-(-(n + c + slack) // page) for n, c in zip(lengths, counts, strict=True)]
    order = torch.randperm(sum(page_counts)) + 1
    pool = KVPool(
        layers=2, pages=sum(page_counts) + 1, page_size=page, kv_heads=KV_HEADS, head_dim=head_dim, dtype=dtype
    )
    pool.keys.uniform_(-1, 1).mul_(POISON)
    pool.values.uniform_(-1, 1).mul_(POISON)
    indptr = np.cumsum([0, *page_counts])
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        pages = order[indptr[row] : indptr[row + 1]]
        slots = (pages[:, None] * page + torch.arange(page)).flatten()[: length + count]
        pool.keys[:, slots] = torch.randn(2, slots.numel(), KV_HEADS, head_dim).to(dtype)
        pool.values[:, slots] = torch.randn(2, slots.numel(), KV_HEADS, head_dim).to(dtype)
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
        exact=slack == 0,
    )
    return inputs, pool


def fixed_pages(inputs: AttentionInputs, most: int) -> FixedPages:
    """Where a recording of these rows finds at most `most` pages; filled with those of `inputs`."""
    device = inputs.kv_indices.device
    rows = inputs.last_page_len.numel()
    sizes = (rows + 1, rows, most)
    pages = FixedPages(*(torch.zeros(size, dtype=torch.int32, device=device) for size in sizes))
    fill(pages, inputs)
    return pages


def fill(pages: FixedPages, inputs: AttentionInputs) -> None:
    pages.kv_indptr.copy_(inputs.kv_indptr)
    pages.last_page_len.copy_(inputs.last_page_len)
    pages.kv_indices[: inputs.kv_indices.numel()].copy_(inputs.kv_indices)

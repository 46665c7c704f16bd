"""Weights in large pages: copies that are what was given, whoever else is kept beside them."""

import gc
import mmap
from itertools import pairwise

import pytest
import torch

from aerie.native import pages
from aerie.native.pages import LargePages


def test_copies_lie_side_by_side_and_outlive_what_made_them() -> None:
    kept, given = [], []
    large = LargePages()
    for size in (3, 4096, 9 << 20, 1 << 20, 17):
        tensor = torch.randint(-100, 100, (size, 2), dtype=torch.int8).t()
        given.append(tensor)
        kept.append(large.keep(tensor))
    del large
    gc.collect()
    for copy, tensor in zip(kept, given, strict=True):
        assert torch.equal(copy, tensor) and copy.is_contiguous() and copy.data_ptr() % 64 == 0
    spans = sorted((copy.data_ptr(), copy.data_ptr() + copy.numel()) for copy in kept)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_small_ones_share_a_block_that_begins_with_a_page() -> None:
    large = LargePages()
    first, second = (large.keep(torch.zeros(100)) for _ in range(2))
    assert first.data_ptr() % (2 << 20) == 0
    assert second.data_ptr() - first.data_ptr() == 4096


def test_a_kernel_without_large_pages_gives_ordinary_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(mmap.mmap):
        def madvise(self, *given: int) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(pages.mmap, "mmap", Plain)
    assert torch.equal(LargePages().keep(torch.arange(5.0)), torch.arange(5.0))

"""Rows of very different lengths: how they are parted, and that they still see what the reference says."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aerie.engine.attention import make_attention
from aerie.engine.attention.cpu import _Parts
from aerie.engine.attention.parts import parts_of
from tests.engine.attention.attention_cases import HEADS, case

LONG = [([2000, 3, 40], [48, 17, 1]), ([5, 900, 7, 880], [1, 1, 8, 4]), ([1500] + [20] * 9, [1] * 10)]


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("shape", LONG)
def test_parts_equal_the_reference(shape: tuple[list[int], list[int]], page: int, tree: bool) -> None:
    inputs, pool = case(*shape, page=page, tree=tree)
    query = torch.randn(sum(shape[1]), HEADS, 16)
    cpu, reference = make_attention("cpu"), make_attention("reference")
    planned = cpu.plan(inputs)
    assert isinstance(planned, _Parts)
    expected = reference.run(reference.plan(inputs), query, pool, 0)
    torch.testing.assert_close(cpu.run(planned, query, pool, 0), expected, atol=1e-5, rtol=1e-4)


def test_later_words_are_seen_by_every_part() -> None:
    inputs, pool = case(*LONG[1], page=16, tree=True)
    query = torch.randn(sum(LONG[1][1]), HEADS, 16)
    cpu, reference = make_attention("cpu"), make_attention("reference")
    assert inputs.words is not None
    alone = torch.ones_like(inputs.words)
    seen = cpu.see(cpu.plan(inputs), alone)
    expected = reference.run(reference.see(reference.plan(inputs), alone), query, pool, 0)
    torch.testing.assert_close(cpu.run(seen, query, pool, 0), expected, atol=1e-5, rtol=1e-4)


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 200)), min_size=1, max_size=20))
def test_every_row_is_in_one_part(rows: list[tuple[int, int]]) -> None:
    parts = parts_of([queries for queries, _ in rows], [pages for _, pages in rows], 16)
    assert sorted(row for part in parts for row in part) == list(range(len(rows)))


def test_a_batch_is_split_where_half_is_saved_and_nowhere_else() -> None:
    assert parts_of([1] * 8, [2, 3, 2, 4, 5, 2, 3, 1], 16) == [list(range(8))], "short rows"
    assert parts_of([1] * 8, [100] * 8, 16) == [list(range(8))], "equal rows"
    assert sorted(parts_of([48, 17, 17], [128, 2, 2], 16)) == [[0], [1, 2]]
    assert sorted(parts_of([1] * 6, [128, 2, 30, 2, 120, 31], 16)) == [[0, 4], [1, 2, 3, 5]]

"""Pages, table and cache as one account: random use never loses a page, and planted leaks are found."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.scheduler.memory import Memory, OutOfPages
from tests.fakes import capacity


def rows(*indices: int) -> np.ndarray:
    return np.array(indices, dtype=np.int64)


def tokens(*counts: int) -> np.ndarray:
    return np.array(counts, dtype=np.int32)


@settings(max_examples=50)
@given(st.integers(0, 10_000))
def test_random_rows_never_lose_a_page(seed):
    source = random.Random(seed)
    memory = Memory(capacity(rows=4, pages=24, reserve=3), prefix_cache=source.random() < 0.8)
    lengths: dict[int, list[int]] = {}
    for _ in range(60):
        row = source.randrange(4)
        if row not in lengths:
            prompt = [source.randrange(2) for _ in range(source.randint(1, 30))]
            found = memory.admit(row, prompt, "", headless=source.random() < 0.5, headroom=source.randrange(3))
            if found is not None:
                assert found % 4 == 0 and found < len(prompt)
                lengths[row] = prompt
        elif source.random() < 0.6:
            held = lengths[row]
            try:
                memory.cover(rows(row), tokens(len(held) + 2))
            except OutOfPages:
                assert memory.available < 24
            else:
                held += [source.randrange(2), source.randrange(2)]
                memory.publish(row, held, len(held) - 1, source.choice([0, 8, 99]), "")
        else:
            memory.release(row)
            del lengths[row]
        memory.check()
    for row in lengths:
        memory.release(row)
    memory.check()
    memory.check_idle()


def test_the_table_covers_what_was_asked_and_its_deltas_say_so():
    memory = Memory(capacity(rows=3, pages=40, reserve=3), prefix_cache=False)
    mirror = np.zeros_like(memory.table.pages)
    memory.admit(0, [1] * 5, "", headless=True, headroom=0)
    memory.admit(2, [1] * 9, "", headless=True, headroom=0)
    for bounds in (6, 7, 12, 26):
        memory.cover(rows(0, 2), tokens(bounds, bounds))
        updates = memory.table.drain()
        if updates is not None:
            assert {updates.rows.dtype, updates.slots.dtype, updates.pages.dtype} == {np.dtype(np.int32)}
            mirror[updates.rows, updates.slots] = updates.pages
        for row in (0, 2):
            assert (mirror[row, : -(-(bounds + 3) // 4)] > 0).all()
    assert (mirror == memory.table.pages).all()
    assert memory.table.drain() is None


def test_out_of_pages_changes_nothing():
    memory = Memory(capacity(rows=3, pages=7, reserve=1), prefix_cache=True)
    memory.admit(0, [1] * 9, "", headless=True, headroom=0)
    memory.admit(1, [2] * 9, "", headless=True, headroom=0)
    memory.table.drain()
    with pytest.raises(OutOfPages):
        memory.cover(rows(0, 1), tokens(12, 12))
    assert memory.table.drain() is None
    assert memory.admit(2, [3], "", headless=True, headroom=0) is None
    memory.check()


def test_cached_pages_make_room_before_anyone_is_refused():
    memory = Memory(capacity(rows=2, pages=7, reserve=1), prefix_cache=True)
    memory.admit(0, [1] * 17, "", headless=True, headroom=0)
    memory.publish(0, [1] * 17, 16, 0, "")
    memory.release(0)
    assert memory.prefix.size == 4
    assert memory.admit(1, [2] * 20, "", headless=True, headroom=0) == 0
    memory.check()


def test_the_longest_request_fills_the_pool_exactly():
    memory = Memory(capacity(rows=2, pages=6, reserve=3, max_length=64), prefix_cache=True)
    assert memory.max_length == 5 * 4 - 3 + 1
    memory.admit(0, [1] * (memory.max_length - 1), "", headless=True, headroom=0)
    memory.cover(rows(0), tokens(memory.max_length - 1))
    assert memory.available == 0


def test_a_planted_leak_is_found():
    memory = Memory(capacity(), prefix_cache=True)
    memory.admit(0, [1] * 9, "", headless=True, headroom=0)
    memory.table.release(0)  # and not given back
    with pytest.raises(AssertionError, match="are lost"):
        memory.check()
    with pytest.raises(AssertionError, match="held at idle"):
        memory.check_idle()


def test_a_page_with_two_owners_is_found():
    memory = Memory(capacity(), prefix_cache=True)
    memory.admit(0, [1] * 9, "", headless=True, headroom=0)
    memory.publish(0, [1] * 9, 8, 0, "")
    memory.table.owned[0, 0] = True
    with pytest.raises(AssertionError, match="two owners"):
        memory.check()

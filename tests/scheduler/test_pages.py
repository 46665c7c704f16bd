"""The free list: hypothesis against a set, and the planted bugs that its check must catch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerie.scheduler.pages import PageAllocator


@given(st.lists(st.integers(0, 12)), st.randoms())
def test_pages_are_handed_out_once_and_come_back(sizes, random):
    pages = PageAllocator(40)
    held: list[int] = []
    for size in sizes:
        if random.random() < 0.5 and held:
            back = random.sample(held, min(size, len(held)))
            pages.give(np.array(back, dtype=np.int32))
            held = [page for page in held if page not in back]
        elif size <= pages.free:
            taken = pages.take(size).tolist()
            assert not set(taken) & set(held) and 0 not in taken
            held += taken
        assert pages.held == len(held) and pages.free + pages.held == pages.total == 39
        pages.check(np.array(held, dtype=np.int32))


def test_a_page_given_twice_is_noticed():
    pages = PageAllocator(8)
    taken = pages.take(3)
    pages.give(taken)
    with pytest.raises(AssertionError, match="given back twice"):
        pages.give(taken[:1])


def test_the_dummy_page_is_never_taken_back():
    with pytest.raises(AssertionError):
        PageAllocator(8).give(np.array([0], dtype=np.int32))


def test_check_names_lost_and_doubled_pages():
    pages = PageAllocator(8)
    taken = pages.take(3)
    with pytest.raises(AssertionError, match="1 pages are lost"):
        pages.check(taken[1:])
    with pytest.raises(AssertionError, match="two owners"):
        pages.check(np.append(taken, taken[:1]))


def test_more_than_is_free_is_our_bug():
    with pytest.raises(AssertionError, match="asked for 8 pages with 7 free"):
        PageAllocator(8).take(8)

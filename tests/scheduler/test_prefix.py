"""The prefix cache against an obvious oracle: the list of all sequences ever published."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.scheduler.prefix import PrefixCache

PAGE = 4


def publish(cache: PrefixCache, tokens: list[int], pages: list[int], *, salt: str = "", headed: int = 99) -> list[bool]:
    """A row's whole life at once: uses what is there, publishes the rest, leaves."""
    node, found = cache.use(salt, tokens, headless=headed < 99)
    keys = cache.keys(tokens, len(found), len(tokens))
    node, taken = cache.extend(node, keys, pages[len(found) : len(found) + len(keys)], headed)
    cache.release(node)
    return taken


def found(cache: PrefixCache, tokens: list[int], *, salt: str = "", headless: bool = False) -> list[int]:
    node, pages = cache.use(salt, tokens, headless=headless)
    cache.release(node)
    return pages


@pytest.mark.parametrize(("matched", "pages"), [(4, 0), (5, 1), (8, 1), (9, 2), (12, 2), (13, 3)])
def test_n_matched_tokens_give_the_floor_of_n_minus_1_pages(matched, pages):
    cache = PrefixCache(PAGE)
    tokens = list(range(100, 120))
    publish(cache, tokens, [1, 2, 3, 4])
    prompt = tokens[:matched] + [7] * (20 - matched)
    assert found(cache, prompt) == [1, 2, 3][:pages]


@pytest.mark.parametrize("length", range(1, 14))
def test_one_prompt_token_is_always_left_to_compute(length):
    cache = PrefixCache(PAGE)
    tokens = list(range(20))
    publish(cache, tokens, [1, 2, 3, 4])
    assert len(found(cache, tokens[:length])) * PAGE < length


def test_the_token_after_a_page_belongs_to_it():
    """The head's last pair of a page holds the next token: another continuation must not find that page."""
    cache = PrefixCache(PAGE)
    publish(cache, [0, 0, 0, 0, 1, 1, 1, 1, 5], [1, 2])
    publish(cache, [0, 0, 0, 0, 1, 1, 1, 1, 6, 6, 6, 6, 6], [11, 12, 13])
    assert found(cache, [0, 0, 0, 0, 1, 1, 1, 1, 5]) == [1, 2]
    assert found(cache, [0, 0, 0, 0, 1, 1, 1, 1, 6, 6, 6, 6, 6]) == [1, 12, 13]


def test_salts_share_nothing_and_leave_nothing():
    cache = PrefixCache(PAGE)
    publish(cache, list(range(9)), [1, 2], salt="a")
    assert found(cache, list(range(9)), salt="b") == []
    assert list(cache._roots) == ["a"]
    cache.evict(2)
    assert cache._roots == {}


def test_headless_pages_are_a_miss_for_drafting_rows():
    cache = PrefixCache(PAGE)
    tokens = list(range(13))
    assert publish(cache, tokens, [1, 2, 3], headed=1) == [True, True, True]
    assert found(cache, tokens) == [1]
    assert found(cache, tokens, headless=True) == [1, 2, 3]
    assert cache.without_head("", tokens) == 2 * PAGE and cache.without_head("tenant", tokens) == 0
    assert publish(cache, tokens, [21, 22, 23]) == [True, True], "pages with head KV join those without"
    assert found(cache, tokens) == [1, 22, 23]
    assert found(cache, tokens, headless=True) == [1, 22, 23]
    cache.check()


def test_duplicates_stay_with_their_row():
    cache = PrefixCache(PAGE)
    tokens = list(range(9))
    node, pages = cache.use("", tokens, headless=False)
    publish(cache, tokens, [1, 2])
    node, taken = cache.extend(node, cache.keys(tokens, 0, 9), [11, 12], 99)
    assert pages == [] and taken == [False, False]
    cache.release(node)
    cache.check()


def test_the_least_recently_used_leaf_goes_first_and_what_is_in_use_stays():
    cache = PrefixCache(PAGE)
    old, new = [1] * 9, [2] * 9
    publish(cache, old, [1, 2])
    publish(cache, new, [3, 4])
    found(cache, old)
    assert cache.evict(1) == [4]
    node, pages = cache.use("", old, headless=False)
    assert cache.evict(10) == [3]
    assert cache.evictable == 0 and pages == [1, 2]
    cache.release(node)
    assert cache.evict(10) == [2, 1]
    assert cache.size == 0


def test_many_hits_do_not_grow_the_heap():
    cache = PrefixCache(PAGE)
    publish(cache, [1] * 9, [1, 2])
    for _ in range(1000):
        found(cache, [1] * 9)
    assert len(cache._leaves) < 100
    assert cache.evict(2) == [2, 1]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=20), st.booleans()), max_size=25))
def test_finds_what_a_list_of_everything_published_finds(rows):
    cache = PrefixCache(PAGE)
    fresh = itertools.count(1)
    published: dict[tuple[int, ...], bool] = {}
    content: dict[int, tuple[int, ...]] = {}
    for tokens, plain in rows:
        keys = [tuple(tokens[: (page + 1) * PAGE + 1]) for page in range((len(tokens) - 1) // PAGE)]
        expected = 0
        while expected < len(keys) and (keys[expected] in published and (plain or published[keys[expected]])):
            expected += 1
        longest = next((place for place, key in enumerate(keys) if key not in published), len(keys))
        headed = next((place for place, key in enumerate(keys) if not published.get(key)), len(keys))
        assert cache.without_head("", tokens) == (longest - headed) * PAGE
        node, pages = cache.use("", tokens, headless=plain)
        assert len(pages) == expected
        assert [content[page] for page in pages] == [key[:-1] for key in keys[:expected]]
        own = [next(fresh) for _ in keys[expected:]]
        node, taken = cache.extend(node, cache.keys(tokens, expected, len(tokens)), own, 0 if plain else 99)
        for key, page, is_taken in zip(keys[expected:], own, taken, strict=True):
            assert is_taken == (key not in published or (not plain and not published[key]))
            published[key] = published.get(key, False) or not plain
            if is_taken:
                content[page] = key[:-1]
        cache.check()
        cache.release(node)
        cache.check()
    assert len(cache.evict(10**6)) == len(content)

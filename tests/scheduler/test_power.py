"""Planted bugs: each must be caught by the fake device, the oracle or the integrity check."""

import numpy as np
import pytest

from aerie.contracts.spec_section import LoadShape, SpecConfig
from aerie.scheduler.future_map import FutureMap
from aerie.scheduler.memory import Memory
from aerie.scheduler.page_table import PageTable
from aerie.scheduler.prefix import PrefixCache
from aerie.scheduler.rows import Rows
from aerie.scheduler.settle import Settler
from tests import fakes
from tests.scheduler.driver import Driver, generate, random_requests


def run(pages: int = 40, **fields: object) -> None:
    requests = random_requests(60, seed=2)
    driver = Driver(fakes.capacity(pages=pages), **fields)
    driver.run(*requests, most_turns=2000)
    driver.assert_answered(requests)


def test_without_a_planted_bug_it_passes():
    run()


def test_a_missed_publish(monkeypatch):
    monkeypatch.setattr(FutureMap, "publish", lambda self, rows: None)
    with pytest.raises(fakes.Broken, match="which nothing published"):
        run()


def test_a_generation_flipped_twice(monkeypatch):
    publish = FutureMap.publish
    count = iter(range(10**9))
    monkeypatch.setattr(
        FutureMap, "publish", lambda self, rows: [publish(self, rows) for _ in range(2 if next(count) == 9 else 1)]
    )
    with pytest.raises(fakes.Broken, match="which nothing published"):
        run()


def test_results_of_a_former_owner_that_are_not_dropped(monkeypatch):
    monkeypatch.setattr(FutureMap, "current", lambda self, rows, stamps: np.ones(len(rows), dtype=bool))
    with pytest.raises(AssertionError):
        run()


def test_a_page_that_leaks(monkeypatch):
    release = PageTable.release
    monkeypatch.setattr(PageTable, "release", lambda self, row: release(self, row)[1:])
    with pytest.raises(AssertionError):
        run(pages=4000)


def test_a_page_cached_before_it_is_full(monkeypatch):
    publish = Memory.publish
    monkeypatch.setattr(
        Memory,
        "publish",
        lambda self, row, tokens, settled, headed, salt: publish(self, row, tokens, settled + 4, headed, salt),
    )
    with pytest.raises(fakes.Broken, match=r"cached pages .* are written"):
        run(prefill_chunk=5)


def test_headless_pages_given_to_drafting_rows(monkeypatch):
    extend = PrefixCache.extend
    monkeypatch.setattr(
        PrefixCache, "extend", lambda self, node, keys, pages, headed: extend(self, node, keys, pages, 10**6)
    )
    with pytest.raises(fakes.Broken, match="holes in its head KV"):
        run(pages=400)


def test_keys_without_the_token_after_the_page(monkeypatch):
    keys = PrefixCache.keys
    monkeypatch.setattr(
        PrefixCache, "keys", lambda self, tokens, first, length: [key[:-4] for key in keys(self, tokens, first, length)]
    )
    with pytest.raises(fakes.Broken, match="holes in its head KV"):
        run(pages=400)


def test_bounds_that_forget_the_step_in_flight(monkeypatch):
    monkeypatch.setattr(Rows, "bounds_of", lambda self, rows: self.settled[rows])
    with pytest.raises(fakes.Broken, match="over its bound"):
        run(spec=SpecConfig(planner="fixed", depth=3, nodes=4))


def test_a_page_table_without_the_reserve(monkeypatch):
    cover = Memory.cover
    monkeypatch.setattr(Memory, "cover", lambda self, rows, bounds: cover(self, rows, bounds - self.reserve))
    with pytest.raises(fakes.Broken, match="do not cover"):
        run()


def test_a_plain_row_that_drafts_again(monkeypatch):
    spec = SpecConfig(planner="fixed", by_load=(LoadShape(rows=2, depth=3, nodes=4),))
    become_plain = Rows.become_plain

    def forget(self: Rows) -> None:
        rows = self.drafting.nonzero()[0]
        if not len(rows):
            self.drafting[:] = self.decoding
        become_plain(self) if len(rows) else None

    monkeypatch.setattr(Rows, "become_plain", forget)
    driver = Driver(fakes.capacity(pages=200), spec=spec)
    with pytest.raises(fakes.Broken, match=r"drafts again|holes in its head KV"):
        driver.run(*[generate(f"r{i}", [i] * 5, max_tokens=50) for i in range(6)])


@pytest.mark.parametrize(("column", "drift"), [("bounds", 1), ("pledged", 1), ("pledged", -1), ("settled", -1)])
def test_a_column_that_drifts_by_one_a_step(monkeypatch, column, drift):
    settle = Settler._settle_decode

    def drifting(self: Settler, rows: np.ndarray, work: object, output: object, *, committed: int) -> None:
        settle(self, rows, work, output, committed=committed)
        getattr(self._rows, column)[rows] += drift

    monkeypatch.setattr(Settler, "_settle_decode", drifting)
    with pytest.raises(AssertionError, match=r"settled|at rest"):
        run(pages=4000)


def test_pages_that_nobody_needs(monkeypatch):
    cover = Memory.cover
    monkeypatch.setattr(Memory, "cover", lambda self, rows, bounds: cover(self, rows, bounds + 2 * self.reserve))
    with pytest.raises(AssertionError, match="at most"):
        run(pages=4000)

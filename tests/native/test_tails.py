"""Rows that rest and come back: head KV, draft seeds and drafts equal those of rows that never rested, bit for bit, in
torch and in whole steps; and rows of all kinds in one drafting step.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aerie.contracts.sampling import SamplingParams
from tests.native.cpp_here import needs_cpp
from tests.native.whole_steps import Pair, make_worker, write_pair
from tests.spec.test_worker import PROMPTS

pytestmark = needs_cpp
CHAIN = {"depth": 3, "topk": 1, "nodes": 4}
RESTING = {"planner": "goodput", "resting_tokens": 5}
TEMPERATURES = (0.0, 0.9)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp("pair"))


def added(both: Pair, first: int, drafting: tuple[bool, ...] = (True, True)) -> list[list[Any]]:
    """The same requests each time, in the rows from `first` on."""

    def add(rounds: Any) -> list[Any]:
        return [
            rounds.add(
                first + index,
                list(PROMPTS[index]),
                SamplingParams(temperature=temperature, seed=index, max_tokens=24),
                drafting=drafting[index],
            )
            for index, temperature in enumerate(TEMPERATURES)
        ]

    return both.each(add)


def head_kv(both: Pair, side: int, row: Any) -> torch.Tensor:
    """The head's keys and values of all pairs of a row."""
    worker = both.workers[side]
    slots = worker.state.tables.slots(torch.full((row.length,), row.index), torch.arange(row.length))
    pool = worker.drafter.head.pool
    return torch.cat([pool.keys[:, slots], pool.values[:, slots]])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rest", [1, 3, 5])
def test_a_row_that_rested_drafts_as_if_it_had_not(pair: tuple[Path, Path], dtype: str, rest: int) -> None:
    both = Pair(lambda: make_worker(pair, dtype, **RESTING))
    assert both.native.capacity.tail == 5
    rested, extended = added(both, 0), added(both, 4)
    both.decode(rested, **CHAIN)
    both.decode(extended, **CHAIN)
    for _ in range(rest):
        both.each(lambda rounds: rounds.decode(rested[both.rounds.index(rounds)], resting=True), only=True)
        both.decode(extended, only=False)
    for _ in range(2):
        one = both.decode(rested, **CHAIN) if rest == 0 else both.decode(rested, behind=rest, **CHAIN)
        other, rest = both.decode(extended, **CHAIN), 0
        for name in ("counts", "accepted", "drafted", "endings"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        for side in (0, 1):
            for resting, extending in zip(rested[side], extended[side], strict=True):
                assert resting.out == extending.out
                assert torch.equal(head_kv(both, side, resting), head_kv(both, side, extending))


def test_a_tail_that_is_not_caught_up_is_noticed(pair: tuple[Path, Path]) -> None:
    """What the test above compares differs without the catch-up."""
    both = Pair(lambda: make_worker(pair, "float32", **RESTING))
    rested, extended = added(both, 0), added(both, 4)
    for _ in range(3):
        both.each(lambda rounds: rounds.decode(rested[both.rounds.index(rounds)], resting=True), only=True)
        both.decode(extended, only=False)
    both.decode(rested, **CHAIN)
    both.decode(extended, **CHAIN)
    assert not torch.equal(head_kv(both, 1, rested[1][0]), head_kv(both, 1, extended[1][0]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_with_and_without_head_share_whole_steps(pair: tuple[Path, Path], dtype: str) -> None:
    both = Pair(lambda: make_worker(pair, dtype, confidence_threshold=0.02))
    rows = added(both, 0, drafting=(True, False))
    more = added(both, 4, drafting=(False, True))
    rows = [[*one, *other] for one, other in zip(rows, more, strict=True)]
    while places := [place for place, row in enumerate(rows[0]) if not row.done]:
        both.decode([[own[place] for place in places] for own in rows], **CHAIN)
    assert all(len(row.out) == 24 for own in rows for row in own)

"""Cells of the planner's probe: the best fixed way, the worst cells, when a cell ends, and waits for the host."""

import random
from types import SimpleNamespace

import pytest

from aerie.probe.planner_cells import (
    LEAST_REQUESTS,
    NULL,
    OFF,
    PLANNER,
    added_waits,
    cell_of,
    narrow_enough,
    over_best,
    summary,
)
from aerie.probe.slices import Slice


def slices(seconds, tokens=10, waits=0):
    return [Slice(tokens, one, one, tokens, waits) for one in seconds]


def rounds(**modes):
    """Rounds of modes by their seconds."""
    named = {name.replace("_", " "): slices(seconds) for name, seconds in modes.items()}
    return [dict(zip(named, one, strict=True)) for one in zip(*named.values(), strict=True)]


@pytest.mark.parametrize(
    ("off", "chain", "best", "over"), [(1.0, 0.8, "chain 3", 0.8 / 0.9), (0.75, 0.8, OFF, 0.75 / 0.9)]
)
def test_the_best_fixed_way_is_the_fastest_of_the_same_rounds(off, chain, best, over) -> None:
    found = over_best(
        rounds(off=[off] * 8, off_again=[off] * 8, planner=[0.9] * 8, fixed=[0.85] * 8, chain_3=[chain] * 8)
    )
    assert found["best"] == found["cpu_best"] == best
    assert found["over_best"] == found["cpu_over_best"] == pytest.approx(over)
    assert found["cpu_over_best_interval"] == pytest.approx([over] * 2)


def test_a_slow_machine_is_slow_for_the_best_way_too() -> None:
    source = random.Random(3)
    slow = [source.uniform(1.0, 5.0) for _ in range(64)]
    fast = [0.5 * one for one in slow]
    found = over_best(rounds(off=slow, off_again=slow, planner=[0.98 * one for one in fast], chain_1=fast))
    assert found["cpu_best"] == "chain 1" and found["cpu_over_best_interval"] == pytest.approx([1 / 0.98] * 2)


def test_a_choice_in_hindsight_makes_the_best_way_look_better_than_it_is() -> None:
    """Ten equal modes that differ by chance: the planner is as fast as all of them, and its ratio is below 1."""
    source = random.Random(4)
    names = [OFF, NULL, PLANNER, *(f"chain {depth}" for depth in range(1, 9))]
    ratios = []
    for _ in range(40):
        seconds = {name: slices([source.gauss(1.0, 0.1) for _ in range(64)]) for name in names}
        ratios.append(
            over_best([{name: own[place] for name, own in seconds.items()} for place in range(64)])["cpu_over_best"]
        )
    assert 0.96 < sum(ratios) / len(ratios) < 0.995


def test_a_cell_ends_only_when_both_intervals_of_the_planner_are_narrow() -> None:
    source = random.Random(5)
    still, noisy = [1.0] * 64, [source.uniform(0.5, 0.9) for _ in range(64)]
    assert narrow_enough(rounds(off=still, off_again=still, planner=still, chain_1=still), 0.01)
    assert not narrow_enough(rounds(off=still, off_again=still, planner=still, chain_1=noisy), 0.01)
    assert not narrow_enough(rounds(off=still, off_again=still, planner=noisy, chain_1=still), 0.01)
    assert not narrow_enough(rounds(off=still, off_again=still, planner=still, chain_1=still)[:63], 0.01)


def contestant(requests):
    return SimpleNamespace(
        ended={"a"},
        answers={"a": [1, 2]},
        decoded=1,
        steps=1,
        ttft=[1e-3] * requests,
    )


@pytest.mark.parametrize(("own", "off"), [(LEAST_REQUESTS, LEAST_REQUESTS), (1000, LEAST_REQUESTS - 1), (199, 1000)])
def test_a_99th_percentile_needs_requests_on_both_sides(own: int, off: int) -> None:
    few = min(own, off) < LEAST_REQUESTS
    taking = {OFF: contestant(off), PLANNER: contestant(own)}
    some = rounds(off=[1.0] * 2, off_again=[1.0] * 2, planner=[1.0] * 2)
    cell = cell_of(PLANNER, taking, some)
    assert cell["ttft_requests"] == min(own, off)
    assert cell["ttft_p99_over_off"] is None if few else cell["ttft_p99_over_off"] == pytest.approx(1.0)
    assert (cell["ttft_p99_ms"] is None) == (own < LEAST_REQUESTS)


def planned(rows, off, best, waits=0.0):
    """A cell by its lower bounds."""
    return {"mode": PLANNER, "load": "long", "temperature": "0", "rows": rows, "best": "chain 1", "cpu_best": OFF} | {
        "over_off": off + 0.05,
        "interval": [off, off + 0.1],
        "cpu_over_off": off + 0.05,
        "cpu_interval": [off, off + 0.1],
        "over_best": best + 0.05,
        "over_best_interval": [best, best + 0.1],
        "cpu_over_best": best + 0.05,
        "cpu_over_best_interval": [best, best + 0.1],
        "added_waits": waits,
        "added_waits_interval": [waits - 1.0, waits + 1.0],
    }


def test_the_summary_names_the_worst_cell_of_each() -> None:
    found = summary([planned(1, 0.97, 0.96), planned(4, 0.99, 0.91), {"mode": OFF}, planned(16, 1.2, 0.95, waits=3.0)])
    assert [(one["against"], one.get("clock"), one["rows"]) for one in found] == [
        ("off", "wall", 1),
        ("best", "wall", 4),
        ("off", "cpu", 1),
        ("best", "cpu", 4),
        ("waits", None, 16),
    ]
    assert [one["lower"] for one in found] == [0.97, 0.91, 0.97, 0.91, 2.0]
    assert [one.get("way") for one in found] == [OFF, "chain 1", OFF, OFF, None] and found[0]["cells"] == 3
    assert summary([{"mode": OFF}]) == []


def test_waits_are_those_beyond_no_speculation() -> None:
    source = random.Random(6)
    off = [Slice(100, 1.0, 1.0, 100, source.randrange(3)) for _ in range(60)]
    same = added_waits([Slice(100, 0.5, 0.5, 50, source.randrange(3)) for _ in range(60)], off)
    more = added_waits([Slice(100, 0.5, 0.5, 50, one.waits + 2) for one in off], off)
    assert same.lower <= 0.0 <= same.upper
    assert more.value == pytest.approx(20.0) and more.lower > 0.0

"""The definitions, on requests written by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerie.bench.measured import Measured, Window, acceptance, interval, percentiles, summarize


def request(sent: float = 0.0, first: float = 1.0, last: float = 3.0, tokens: int = 5, **more) -> Measured:
    return Measured(sent=sent, pieces=[first, last], ended=last + 0.5, tokens=tokens, **more)


def test_each_time_is_what_it_says() -> None:
    one = request(sent=0.25)
    assert (one.ttft, one.e2e, one.tpot, one.gaps) == (0.75, 3.25, 0.5, [2.0])
    assert request(tokens=1).tpot is None


def test_tokens_are_spread_between_first_and_last_piece() -> None:
    one = request(first=1.0, last=3.0, tokens=10)
    assert one.tokens_within(0, 10) == 10
    assert one.tokens_within(2, 10) == one.tokens_within(0, 2) == 5
    assert one.tokens_within(4, 9) == 0
    assert Measured(sent=0, pieces=[1.0], ended=1, tokens=3).tokens_within(0, 2) == 3


def test_only_the_window_counts() -> None:
    early, own, late = request(sent=-5, first=-4, last=-1), request(sent=1, first=2, last=4, tokens=8), request(sent=11)
    found = summarize([early, own, late], Window(0, 10), {"ttft": 0.9})
    assert found["requests"] == 1 and found["output_tokens_per_s"] == pytest.approx(0.8 + 0.5)  # late's text is within
    assert found["tpot"] == percentiles([2 / 7]) and found["goodput_per_s"] == 0
    assert summarize([own], Window(0, 10), {"ttft": 1.0, "tpot": 0.3})["goodput_per_s"] == 0.1


def test_throughput_with_the_drain_counts_to_the_last_end() -> None:
    own, late = request(sent=1, first=2, last=4, tokens=8), request(sent=9, first=11, last=13, tokens=6)
    found = summarize([own, late], Window(0, 10))
    assert found["output_tokens_per_s"] == pytest.approx(0.8)
    assert found["output_tokens_per_s_with_drain"] == pytest.approx(14 / 13.5)


def test_failed_requests_are_counted_and_not_timed() -> None:
    broken = Measured(sent=1, pieces=[2.0], ended=2, error="truncated")
    found = summarize([request(sent=1), broken, broken], Window(0, 10))
    assert (found["requests"], found["failed"], found["errors"]) == (3, 2, {"truncated": 2})
    assert found["ttft"]["mean"] == 0  # type: ignore[index]


def test_acceptance_is_weighted_by_steps() -> None:
    a = request(speculation={"steps": 1, "drafted": 2, "accepted": 2, "accepted_per_position": [1, 1]})
    b = request(speculation={"steps": 3, "drafted": 6, "accepted": 0, "accepted_per_position": []})
    found = acceptance([a, b])
    assert (found["acceptance_length"], found["acceptance_per_position"]) == (1.5, [0.25, 0.25])
    assert found["acceptance_of_requests"]["mean"] == 2 and found["acceptance_of_requests"]["p50"] == 1  # type: ignore
    plain = request(speculation={"steps": 3, "drafted": 0, "accepted": 0})
    assert acceptance([plain, request()])["acceptance_length"] is None


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_a_percentile_is_the_least_value_that_covers_its_share(values: list[float]) -> None:
    found = percentiles(values)
    assert found is not None
    assert ("p99" in found) == (len(values) >= 200), "fewer have none"
    for percent in (50, 90, 95, *([99] if "p99" in found else [])):
        covering = [v for v in values if 100 * sum(other <= v for other in values) >= percent * len(values)]
        assert found[f"p{percent}"] == min(covering)


def test_the_interval_over_repeats() -> None:
    assert interval([3.0]) == (3.0, None)
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2 and half == pytest.approx(4.303 / 3**0.5)

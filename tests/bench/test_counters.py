"""Acceptance from /metrics: names, sums over engines, differences."""

from pathlib import Path

import pytest

from aerie.bench.config import Target
from aerie.bench.counters import Counters, parse
from aerie.bench.targets import Server

SCRAPE = """# HELP vllm:spec_decode_num_drafts_total x
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 5.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 45.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 18.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="0"} 3.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="2"} 6.0
aerie:spec_decode_num_drafts_total{model_name="m"} 15.0
"""


def test_engines_are_summed_and_aliases_are_not() -> None:
    assert parse(SCRAPE) == Counters(15, 45, 18, (12, 0, 6))


@pytest.mark.parametrize(
    "text", ["", "<html>", "vllm:num_requests_running 3.0\n", 'vllm:spec_decode_x{a="b"} nonsense']
)
def test_others_have_none(text: str) -> None:
    assert parse(text) is None


def test_only_what_came_in_between_counts() -> None:
    gained = Counters(15, 45, 18, (12, 0, 6)).since(Counters(5, 15, 8, (5,)))
    assert gained is not None
    assert (gained["drafts"], gained["acceptance_length"]) == (10, 2.0)
    assert gained["acceptance_per_position"] == pytest.approx([0.7, 0.0, 0.6])


def test_nothing_drafted_or_a_server_begun_anew_says_nothing() -> None:
    before = Counters(15, 45, 18, (12, 0, 6))
    assert before.since(before) is None and Counters(20, 60, 4).since(before) is None


def test_a_scrape_that_reaches_nobody_is_a_reason_and_no_error(tmp_path: Path) -> None:
    reported = Server(Target(name="gone", url="http://127.0.0.1:9"), tmp_path).counters()
    assert isinstance(reported, str) and reported.startswith("no /metrics: ") and "refused" in reported

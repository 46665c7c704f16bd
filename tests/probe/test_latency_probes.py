"""The probes of waiting and of the plain baseline, on the tiny pair."""

import pytest
from msgspec.structs import replace

from aerie.contracts.config import Config
from aerie.contracts.step import Lane
from aerie.probe.baseline import measure_baseline
from aerie.probe.drive import ask, drive
from aerie.probe.long_prompts import measure_long_prompts
from tests.patience import quickest
from tests.probe.conftest import PROMPTS, make_lane


def test_a_companion_is_open_until_the_last_answer_and_changes_none(config: Config) -> None:
    requests = ask(PROMPTS, [0.0], max_tokens=12)
    others = [replace(other, id=f"other-{other.id}") for other in ask(PROMPTS * 50, [0.0], max_tokens=2)]
    lane = make_lane(config)
    alone = drive(lane, config, requests, concurrency=2)
    beside = drive(lane, config, requests, concurrency=2, beside=others)
    assert beside.tokens == alone.tokens
    assert alone.beside == 0 and 1 < beside.beside < len(others)
    assert drive(lane, config, requests, concurrency=2).tokens == alone.tokens, "the last companion left nothing behind"


def test_short_requests_are_measured_alone_and_beside_long_ones(config: Config) -> None:
    def quiet_over_crowded() -> float:
        quiet, crowded = measure_long_prompts(
            config, PROMPTS, make_lane, rounds=1, requests=200, max_tokens=3, length=90
        )
        assert quiet["load"] == "quiet" and quiet["over_quiet"] == 1 and quiet["long_prompts_read"] == 0
        assert crowded["long_prompt_tokens"] == 89 and crowded["requests"] == 200
        assert crowded["ttft_p99"] == crowded["ttft_p99_of_runs"][0]
        assert crowded["over_quiet"] == crowded["ttft_p99"] / quiet["ttft_p99"]
        return 1 / crowded["over_quiet"]

    assert quickest(quiet_over_crowded, 1) < 1


def test_long_prompts_are_cut_to_what_the_model_takes(config: Config) -> None:
    cells = measure_long_prompts(config, PROMPTS, make_lane, rounds=1, requests=2, max_tokens=2, length=10**6)
    assert cells[1]["long_prompt_tokens"] == config.model.max_length - 1
    assert cells[1]["ttft_p99"] is None and cells[1]["over_quiet"] is None, (
        "of two requests there is no 99th percentile"
    )


def test_plain_decoding_says_what_transformers_says(config: Config) -> None:
    lanes: list[tuple[int | None, Lane]] = []

    def make(asked: Config) -> Lane:
        lane = make_lane(asked)
        assert not lane.capacity.drafts
        lanes.append((asked.engine.threads, lane))
        return lane

    cells = measure_baseline(config, PROMPTS, make, threads=(1,), rounds=2, max_tokens=6, backend="eager")
    assert [count for count, _ in lanes] == [1]
    by_side = {(cell["side"], cell["dtype"], cell["compiled"]): cell for cell in cells}
    peers = {("transformers", dtype, compiled) for dtype in ("float32", "bfloat16") for compiled in (False, True)}
    assert set(by_side) == peers | {("aerie", "float32", False)}
    ours = by_side["aerie", "float32", False]
    assert ours["identical"] == 1 and ours["best"] and len(ours["tokens_per_s_of_rounds"]) == 2
    peer = max(cell["tokens_per_s"] for cell in cells if cell["side"] == "transformers")
    assert ours["over_transformers"] == pytest.approx(ours["tokens_per_s"] / peer)

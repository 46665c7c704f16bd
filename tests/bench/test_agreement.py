"""The script that sets aiperf beside the load generator: what it reads of both, and when it says that they agree."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.bench.test_sweep import HOME


@pytest.fixture(scope="module")
def agreement() -> ModuleType:
    spec = importlib.util.spec_from_file_location("agreement", HOME / "scripts/agreement.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_send_the_same_bodies(agreement: ModuleType) -> None:
    sent = agreement.bodies("m", 9, 48)
    assert [body["seed"] for body in sent] == list(range(9)) and len({str(body["messages"]) for body in sent}) == 9
    assert all(body["max_tokens"] == 48 and body["ignore_eos"] and body["temperature"] == 0 for body in sent)


def test_figures_of_both_are_milliseconds_and_tokens_a_second(agreement: ModuleType) -> None:
    times = {"tpot": {"p50": 0.01}, "ttft": {"p50": 0.05}, "e2e": {"p50": 0.5}}
    cell = {"status": "ok", "failed": 0, "output_tokens_per_s": 90.0, **times}
    reported = {
        "inter_token_latency": {"p50": 10.0},
        "time_to_first_token": {"p50": 50.0},
        "request_latency": {"p50": 500.0},
        "output_token_throughput": {"avg": 90.0},
        "error_summary": [],
    }
    assert agreement.figures_of_cell(cell) == agreement.figures_of_export(reported) == {
        "TPOT p50 (ms)": 10.0, "TTFT p50 (ms)": 50.0, "E2E p50 (ms)": 500.0, "tokens/s": 90.0
    }  # fmt: skip
    with pytest.raises(agreement.NoAgreement, match="had failures"):
        agreement.figures_of_export(reported | {"error_summary": [{"count": 1}]})
    with pytest.raises(agreement.NoAgreement, match="had failures"):
        agreement.figures_of_cell(cell | {"failed": 1, "errors": {"truncated": 1}})


def line(seed: int, end: str, seconds: float, first: float, tokens: int = 11) -> str:
    times = {"seconds": seconds, "first_seconds": first, "decode_seconds": seconds - first}
    return json.dumps({"event": "request", "time": end, "seed": seed, "completion_tokens": [tokens], **times}) + "\n"


def test_the_server_s_log_is_a_witness_by_the_same_definitions(
    agreement: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "server.log"
    log.write_text("INFO: a line of another kind\n" + line(0, "2026-01-01T00:00:09.000+00:00", 9.0, 8.0))
    witness = agreement.Witness(log)
    with log.open("a") as file:
        file.write(line(1 << 62, "2026-01-01T00:00:09.500+00:00", 0.1, 0.1, tokens=1))  # a tool's look at the server
        file.write(line(1, "2026-01-01T00:00:10.000+00:00", 1.0, 0.5))
        file.write(line(2, "2026-01-01T00:00:11.000+00:00", 1.0, 0.5))
    expected = {"TPOT p50 (ms)": 50.0, "TTFT p50 (ms)": 500.0, "E2E p50 (ms)": 1000.0, "tokens/s": 11.0}
    assert witness.figures(3, warm_up=1) == pytest.approx(expected)
    monkeypatch.setattr(agreement, "LOG_SECONDS", 0.0)
    with pytest.raises(agreement.NoAgreement, match="0 requests of 1"):
        witness.figures(1, warm_up=0)


def test_a_server_that_was_slower_under_one_tool_is_no_disagreement(agreement: ModuleType) -> None:
    def run(reported: float, own: float) -> tuple[dict[str, float], dict[str, float]]:
        return dict.fromkeys(agreement.FIGURES, reported), dict.fromkeys(agreement.FIGURES, own)

    found = agreement.compared([(run(101.0, 100.0), run(202.0, 200.0))])
    assert found["TPOT p50 (ms)"]["ratio"] == pytest.approx(1) and found["E2E p50 (ms)"]["ratio_as_told"] == 0.5
    assert agreement.agrees(found)
    assert agreement.cells({4: found})[1] == {"concurrency": 4, "figure": "TTFT p50 (ms)", **found["TTFT p50 (ms)"]}
    assert not agreement.agrees(agreement.compared([(run(101.0, 100.0), run(202.0, 180.0))]))


def test_answers_that_arrive_at_once_cannot_be_compared(agreement: ModuleType) -> None:
    run = (dict.fromkeys(agreement.FIGURES, 1.0), dict.fromkeys(agreement.FIGURES, 1.0))
    burst = (run[0] | {"TPOT p50 (ms)": 0.0}, run[1])
    with pytest.raises(agreement.NoAgreement, match=r"TPOT p50 \(ms\) is 0.*--max-tokens"):
        agreement.compared([(run, run), (run, burst)])


def test_the_median_of_pairs_decides(agreement: ModuleType) -> None:
    plain = dict.fromkeys(agreement.FIGURES, 1.0)

    def agrees(*pairs: tuple[dict[str, float], dict[str, float]]) -> bool:
        good: bool = agreement.agrees(agreement.compared([((a, plain), (b, plain)) for a, b in pairs]))
        return good

    base = dict.fromkeys(agreement.FIGURES, 100.0)
    pairs = [(base | {"tokens/s": rate}, base) for rate in (104.0, 101.0, 150.0)]
    assert agrees(*pairs) and not agrees(*pairs, *pairs[2:], *pairs[2:])
    assert not agrees((base | {"TPOT p50 (ms)": 94.0}, base))
    short = base | {"TTFT p50 (ms)": 10.0, "TPOT p50 (ms)": 10.0}
    assert agrees((short | {"TTFT p50 (ms)": 10.9}, short))
    assert not agrees((short | {"TPOT p50 (ms)": 10.9}, short))

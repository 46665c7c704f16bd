"""The script that sets aiperf beside the load generator: what it reads of both, and when it says that they agree."""

import importlib.util
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
    told = {
        "inter_token_latency": {"p50": 10.0},
        "time_to_first_token": {"p50": 50.0},
        "request_latency": {"p50": 500.0},
        "output_token_throughput": {"avg": 90.0},
        "error_summary": [],
    }
    assert agreement.figures_of_cell(cell) == agreement.figures_of_export(told) == {
        "TPOT p50 (ms)": 10.0, "TTFT p50 (ms)": 50.0, "E2E p50 (ms)": 500.0, "tokens/s": 90.0
    }  # fmt: skip
    with pytest.raises(agreement.NoAgreement, match="had failures"):
        agreement.figures_of_export(told | {"error_summary": [{"count": 1}]})
    with pytest.raises(agreement.NoAgreement, match="had failures"):
        agreement.figures_of_cell(cell | {"failed": 1, "errors": {"truncated": 1}})


def test_the_median_of_pairs_decides(agreement: ModuleType) -> None:
    base = dict.fromkeys(agreement.FIGURES, 100.0)
    pairs = [(base | {"tokens/s": rate}, base) for rate in (104.0, 101.0, 150.0)]
    found = agreement.compared(pairs)
    assert found["tokens/s"]["ratio"] == pytest.approx(1.04) and agreement.agrees(found)
    assert not agreement.agrees(agreement.compared([*pairs, *pairs[2:], *pairs[2:]]))
    assert not agreement.agrees(agreement.compared([(base | {"TPOT p50 (ms)": 94.0}, base)]))
    short = base | {"TTFT p50 (ms)": 10.0, "TPOT p50 (ms)": 10.0}
    assert agreement.agrees(agreement.compared([(short | {"TTFT p50 (ms)": 10.9}, short)]))
    assert not agreement.agrees(agreement.compared([(short | {"TPOT p50 (ms)": 10.9}, short)]))

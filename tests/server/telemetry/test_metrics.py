"""Every metric has its row in docs/metrics.md, as the code has it, and follows the conventions of its kind."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from aerie.contracts.config import Config
from aerie.contracts.errors import AerieError
from aerie.contracts.messages import GrammarSnapshot, Snapshot, Usage
from aerie.server.dispatch.admission import Admission
from aerie.server.telemetry.head_watch import Promise
from aerie.server.telemetry.metrics import PREFIX, Metrics
from aerie.server.telemetry.state_metrics import State
from tests.house import HOME
from tests.server.fake_scheduler import FakeScheduler

PAGE = HOME / "docs/metrics.md"
LABELS = {"model_name", "le"}
ENDING: dict[str, Any] = {"seconds": 4.0, "decode": 0.5, "prompt": 9, "tokens": 5, "allowed": 16}


def made(admission: Admission, snapshot: Snapshot | None = None, *, promised: float | None = None) -> Metrics:
    engine: Any = SimpleNamespace(snapshot=snapshot)
    return Metrics("m", State("m", Config(), engine, admission, version="1", promised=promised))


@pytest.fixture(scope="module")
def families() -> list[Metric]:
    """What a server exports that has a head with a card, after one request of each ending."""
    admission = Admission(1)
    snapshot = FakeScheduler("ipc://nowhere", lambda request: iter(()))._snapshot()
    for reason in ("queue_full", "starting", "draining"):
        assert isinstance(admission.reject(reason, "no", 1), AerieError)
    metrics = made(admission, snapshot, promised=Promise("h", (0.5,), "x").length)
    metrics.first_token(0.1, 5)
    metrics.between_tokens(0.01)
    metrics.finished("stop", **ENDING, usage=Usage(prompt_tokens=5, completion_tokens=5))
    metrics.answered([5])
    metrics.left()
    metrics.http("/version", "GET", 200, 0.001)
    return list(text_string_to_metric_families(metrics.render().decode()))


def on_wire(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def row(family: Metric, aliases: set[str]) -> str:
    labels = sorted({label for sample in family.samples for label in sample.labels} - LABELS)
    alias = "yes" if on_wire(family).replace(PREFIX, "vllm", 1) in aliases else ""
    return f"| `{on_wire(family)}` | {family.type} | {', '.join(labels)} | {alias} | {family.documentation} |"


def table(families: list[Metric]) -> str:
    aliases = {on_wire(family) for family in families if family.name.startswith("vllm:")}
    own = [row(family, aliases) for family in families if not family.name.startswith("vllm:")]
    return "\n".join(["| metric | type | labels | also as `vllm:` | meaning |", "|---|---|---|---|---|", *own, ""])


def test_the_page_has_the_table_of_the_code(families: list[Metric]) -> None:
    assert table(families) in PAGE.read_text(encoding="utf-8"), f"renew it:\n{table(families)}"


def test_names_say_their_unit_and_kind(families: list[Metric]) -> None:
    for family in families:
        assert family.documentation and family.name.startswith((f"{PREFIX}:", "vllm:", "http_", "process_")), (
            family.name
        )
        if family.type == "histogram":
            unit = next(unit for unit in ("_seconds", "_tokens", "_tokens_total", "_n") if family.name.endswith(unit))
            edges = [float(s.labels["le"]) for s in family.samples if s.name.endswith("_bucket")]
            assert edges == sorted(edges) and edges[0] <= (0.001 if unit == "_seconds" else 1)
            assert edges[-1] == float("inf")


def test_an_alias_tells_the_same(families: list[Metric]) -> None:
    """In kind, labels and values; and nothing is exported under vLLM's name alone."""
    known = {family.name: family for family in families}
    aliases = [family for family in families if family.name.startswith("vllm:")]
    assert len(aliases) > 15
    for alias in aliases:
        own = known[alias.name.replace("vllm", PREFIX, 1)]
        assert own.type == alias.type
        assert [(s.labels, s.value) for s in own.samples] == [(s.labels, s.value) for s in alias.samples]


def test_every_counter_of_an_ending_begins_at_zero() -> None:
    """`increase` cannot see the first event of a series that begins with it."""
    metrics = made(Admission(1))
    text = metrics.render().decode()
    for reason in ("stop", "length", "abort"):
        assert f'aerie:request_success_total{{finished_reason="{reason}",model_name="m"}} 0.0' in text
    for code in ("engine_dead", "deadline_exceeded", "queue_timeout", "overloaded"):
        assert f'aerie:request_failure_total{{code="{code}",model_name="m"}} 0.0' in text


def test_what_grammars_and_calls_took_is_exported() -> None:
    took = GrammarSnapshot(
        steps=11,
        choices=12,
        masks=13,
        distinct_masks=18,
        mask_seconds=1.5,
        drafted=19,
        forbidden=14,
        late=15,
        builds=16,
        build_seconds=2.5,
        reused=20,
    )
    whole = FakeScheduler("ipc://nowhere", lambda request: iter(()))._snapshot()
    metrics = made(Admission(1), msgspec.structs.replace(whole, grammars=took))
    metrics.unparsed(17)
    lines = {line.partition("{")[0]: line.rpartition(" ")[2] for line in metrics.render().decode().splitlines()}
    wanted = {"steps": 11, "choices": 12, "masks": 13, "mask_seconds": 1.5, "forbidden_drafts": 14, "late_rows": 15}
    wanted |= {"builds": 16, "build_seconds": 2.5, "distinct_masks": 18, "drafts": 19, "reused": 20}
    assert {name: float(lines[f"aerie:grammar_{name}_total"]) for name in wanted} == wanted
    assert float(lines["aerie:tool_parse_failures_total"]) == 17


def test_inference_is_prefill_and_decode() -> None:
    metrics = made(Admission(1))
    usage = Usage(prompt_tokens=5, completion_tokens=5, queue_seconds=3.0, prefill_seconds=0.25)
    metrics.finished("stop", **ENDING, usage=usage)
    assert 'vllm:request_inference_time_seconds_sum{model_name="m"} 0.75' in metrics.render().decode()


def test_without_a_card_nothing_is_promised() -> None:
    metrics = made(Admission(1))
    assert "promised" not in metrics.render().decode()

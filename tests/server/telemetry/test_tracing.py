"""Spans of a request: below the caller's, with its phases inside; and a collector that is not there harms nobody."""

import gzip
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from aiohttp import web

from aerie.contracts.errors import ConfigError
from aerie.contracts.messages import Generate, Usage
from aerie.contracts.sampling import SamplingParams
from aerie.server.telemetry import tracing
from aerie.server.telemetry.account import Account
from aerie.server.telemetry.tracing import Tracing
from tests.patience import come, quickest
from tests.server.conftest import Start

pytest.importorskip("opentelemetry.sdk", reason="the extra `traces` is not installed")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import StatusCode

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Kept(SpanExporter):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        self.spans: dict[str, ReadableSpan] = {}

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans |= {span.name: span for span in spans}
        return SpanExportResult.SUCCESS


def account(**changes: Any) -> Account:
    usage = Usage(
        prompt_tokens=5,
        completion_tokens=7,
        steps=3,
        drafted=12,
        accepted=4,
        accepted_per_position=[3, 1],
        queue_seconds=0.2,
        prefill_seconds=0.1,
    )
    fields: dict[str, Any] = {
        "id": "r",
        "model": "m",
        "outcome": "finished",
        "requests": [Generate(id="r", prompt=[40, 41], sampling=SamplingParams(temperature=0.5))],
        "finish": ["stop"],
        "usage": [usage],
        "parent": CALLER,
        "began": 10.0,
        "first": 10.5,
        "last": 11.0,
        "ended": 11.25,
    }
    return Account(**(fields | changes))


def recorded(**changes: Any) -> dict[str, ReadableSpan]:
    kept = Kept()
    keeping = Tracing("http://nowhere", version="1", exporter=kept)
    keeping.record(account(**changes))
    keeping.close()
    return kept.spans


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None and span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def test_a_request_is_a_span_below_its_caller_s_with_phases_inside() -> None:
    spans = recorded()
    whole = spans.pop("generate m")
    assert whole.parent is not None and format(whole.parent.span_id, "016x") == CALLER.split("-")[2]
    assert format(whole.context.trace_id, "032x") == CALLER.split("-")[1]
    assert seconds(whole) == pytest.approx(1.25, abs=1e-6)
    found = {name: seconds(span) for name, span in spans.items()}
    assert found == pytest.approx({"queue": 0.2, "prefill": 0.1, "decode": 0.5}, abs=1e-6)
    for span in spans.values():
        assert span.parent is not None and span.parent.span_id == whole.context.span_id
    assert spans["queue"].end_time == spans["prefill"].start_time
    assert spans["prefill"].end_time == spans["decode"].start_time


def test_attributes_count_and_hold_no_text() -> None:
    attributes = dict(recorded()["generate m"].attributes or {})
    assert attributes["gen_ai.usage.output_tokens"] == 7 and attributes["gen_ai.request.temperature"] == 0.5
    assert attributes["aerie.accepted_per_position"] == (3, 1)
    assert attributes["aerie.acceptance_length"] == pytest.approx(1 + 4 / 3)
    assert not {name for name in attributes if "prompt" in name or "content" in name}


def test_a_failed_request_is_an_error_and_one_whose_caller_left_is_none() -> None:
    assert recorded(outcome="engine_dead")["generate m"].status.status_code is StatusCode.ERROR
    assert recorded(outcome="left")["generate m"].status.status_code is StatusCode.UNSET


def test_without_a_first_token_there_is_only_the_queue() -> None:
    assert set(recorded(first=None, parent=None)) == {"generate m", "queue"}


async def test_a_server_answers_though_no_collector_does(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """And when it has ended, no thread is left that would try again."""
    monkeypatch.setattr(tracing, "FLUSH_SECONDS", 0.1)
    async with start(settings={"server": {"trace_url": "http://127.0.0.1:1"}}) as live:
        answer = await live.client().chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "hi"}], extra_headers={"traceparent": CALLER}
        )
        assert answer.choices[0].finish_reason == "stop"
        await live.idle()
        assert live.service.tracing is not None
        assert "OtelBatchSpanRecordProcessor" in threads()
    await come(lambda: not {"OtelBatchSpanRecordProcessor", "last spans"} & threads(), "a thread is left")


def test_a_silent_collector_does_not_hold_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "FLUSH_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def closing() -> float:
            reported = Tracing(f"http://127.0.0.1:{silent.getsockname()[1]}", version="1")
            reported.record(account())
            began = time.monotonic()
            reported.close()
            reported.close()
            return time.monotonic() - began

        assert 0.1 <= quickest(closing, 2) < 2


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


async def test_a_collector_gets_the_spans_of_a_served_request(start: Start) -> None:
    """The whole way: HTTP in, OTLP over HTTP out."""
    arrived: list[ExportTraceServiceRequest] = []

    async def collect(request: web.Request) -> web.Response:
        body = await request.read()
        whole = gzip.decompress(body) if request.headers.get("content-encoding") == "gzip" else body
        arrived.append(ExportTraceServiceRequest.FromString(whole))
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", collect)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with start(settings={"server": {"trace_url": f"http://127.0.0.1:{runner.addresses[0][1]}"}}) as live:
            await live.client().chat.completions.create(
                model="demo", messages=[{"role": "user", "content": "secret"}], extra_headers={"traceparent": CALLER}
            )
            await live.idle()
    finally:
        await runner.cleanup()
    spans = {span.name: span for reported in arrived for one in reported.resource_spans for scope in one.scope_spans
             for span in scope.spans}  # fmt: skip
    assert spans.keys() == {"generate demo", "queue", "prefill", "decode"}
    assert {span.trace_id.hex() for span in spans.values()} == {CALLER.split("-")[1]}
    assert "secret" not in str(arrived)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"OpenTelemetry is not installed .* extra `traces`"):
        Tracing("http://nowhere", version="1")

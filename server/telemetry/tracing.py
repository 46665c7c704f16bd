"""OpenTelemetry traces, an optional extra: a span per request, with child spans for queue, prefill and decode.

Made by `build_service` if `server.trace_url` is set; nothing else imports OpenTelemetry. Spans are written when a
request has ended, from times that are recorded anyway, so that they cost no step any time.
"""

import threading
import time
from typing import Any

from aerie.contracts.errors import ConfigError
from aerie.server.telemetry.account import Account, acceptance_length, total

FLUSH_SECONDS = 2.0
"""How long shutdown waits for a collector."""


class Tracing:
    """`exporter` is for tests; by default spans go to the collector at `url`."""

    def __init__(self, url: str, *, version: str, exporter: Any = None) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ConfigError(
                f"server.trace_url is {url!r}, and OpenTelemetry is not installed ({error.name}); "
                f"install Aerie with the extra `traces`, or unset it",
                param="server.trace_url",
            ) from None
        resource = Resource.create({"service.name": "aerie", "service.version": version})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._exporter = exporter or OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces", timeout=5)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("aerie")
        self._propagator = TraceContextTextMapPropagator()

    def record(self, account: Account) -> None:
        """Records the spans of a finished request, as children of the span in the caller's `traceparent`."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        offset = time.time() - time.monotonic()

        def at(moment: float) -> int:
            return int((moment + offset) * 1e9)

        context = None if account.parent is None else self._propagator.extract({"traceparent": account.parent})
        whole = self._tracer.start_span(
            f"generate {account.model}", context, SpanKind.SERVER, _attributes(account), start_time=at(account.began)
        )
        if account.failed:
            whole.set_status(Status(StatusCode.ERROR, account.outcome))
        inside = set_span_in_context(whole)
        for name, begin, end in _phases(account):
            self._tracer.start_span(name, inside, start_time=at(begin)).end(at(end))
        whole.end(at(account.ended))

    def close(self) -> None:
        """Sends the remaining spans for at most FLUSH_SECONDS, then stops sending and retrying. Safe to call twice.

        Runs in a separate thread: OpenTelemetry's flush and shutdown wait for as long as a collector stays silent.
        """
        ending = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        ending.start()
        ending.join(FLUSH_SECONDS)
        if ending.is_alive():
            self._exporter.shutdown()  # ends the wait before the next retry


def _phases(account: Account) -> list[tuple[str, float, float]]:
    """Name, start and end of each phase. The scheduler measures queue and prefill back from the first token; the time
    before them is the server's: template and tokenizer.
    """
    if account.first is None:
        return [("queue", account.began, account.ended)]
    usage = total(account.usage)
    prefill = max(account.first - usage.prefill_seconds, account.began)
    queue = max(prefill - usage.queue_seconds, account.began)
    return [("queue", queue, prefill), ("prefill", prefill, account.first), ("decode", account.first, account.last)]


def _attributes(account: Account) -> dict[str, Any]:
    """Uses OpenTelemetry's names for generative AI where they exist; contains no text."""
    usage = total(account.usage)
    sampling = account.requests[0].sampling
    attributes = {
        "gen_ai.operation.name": "generate",
        "gen_ai.provider.name": "aerie",
        "gen_ai.request.model": account.model,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.choice.count": len(account.requests),
        "gen_ai.response.id": account.id,
        "gen_ai.response.finish_reasons": [reason or "none" for reason in account.finish],
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "aerie.outcome": account.outcome,
        "aerie.cached_tokens": usage.cached_tokens,
        "aerie.preemptions": usage.preemptions,
        "aerie.steps": usage.steps,
        "aerie.drafted": usage.drafted,
        "aerie.accepted_per_position": usage.accepted_per_position,
        "aerie.acceptance_length": acceptance_length(usage),
    }
    return {name: value for name, value in attributes.items() if value is not None}

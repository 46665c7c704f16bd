"""Prometheus metrics of requests: Aerie's names, and vLLM's as aliases, so that the field's tools can read them here.

`generation` reports what requests went through; `state_metrics` gives the rest when /metrics is asked. Counters get
`_total` on the wire. docs/metrics.md lists them all.
"""

from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from contracts.errors import DeadlineExceeded, EngineDead, Overloaded
from contracts.messages import Usage

PER_TOKEN_BUCKETS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
WAIT_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 600)

PREFIX = "aerie"
_ALIAS = "vllm"
_SHARED = frozenset(
    f"{PREFIX}:{name}"
    for name in (
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "prompt_tokens",
        "generation_tokens",
        "request_success",
        "admission_rejections",
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prefix_cache_queries",
        "prefix_cache_hits",
        "num_preemptions",
        "spec_decode_num_drafts",
        "spec_decode_num_draft_tokens",
        "spec_decode_num_accepted_tokens",
        "spec_decode_num_accepted_tokens_per_pos",
    )
)
"""What vLLM has under the same name with the same meaning."""


class Metrics:
    """`state` collects what is known beside the requests."""

    def __init__(self, model: str, state: Collector) -> None:
        # A series beside each series, which nobody asks for.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._model = model
        self._registry = CollectorRegistry()
        self._own = CollectorRegistry()
        self._first = self._histogram("time_to_first_token", "From arrival to the first token", WAIT_BUCKETS)
        self._between = self._histogram(
            "inter_token_latency",
            "Between the steps of a request that committed tokens, of any number",
            PER_TOKEN_BUCKETS,
        )
        self._per_token = self._histogram(
            "request_time_per_output_token", "(last - first token) / (tokens - 1), once a request", PER_TOKEN_BUCKETS
        )
        self._whole = self._histogram("e2e_request_latency", "From arrival to the end", WAIT_BUCKETS)
        self._queue = self._histogram("request_queue_time", "From the queue's end to its front", WAIT_BUCKETS)
        self._prefill = self._histogram("request_prefill_time", "From the first prefill step to the last", WAIT_BUCKETS)
        self._decode = self._histogram("request_decode_time", "From the first token to the last", WAIT_BUCKETS)
        self._inference = self._histogram(
            "request_inference_time", "From the first prefill step to the last token", WAIT_BUCKETS
        )
        self._prompt = self._counter(
            "prompt_tokens", "Prompt tokens of requests that got a token, cached ones included"
        )
        self._generated = self._counter("generation_tokens", "Tokens of answers")
        self._success = self._counter(
            "request_success", "Choices that ended; abort: their caller left", "finished_reason"
        )
        self._failed = self._counter("request_failure", "Requests that ended with an error", "code")
        # From zero on, so that the first one counts as an increase.
        for reason in ("stop", "length", "abort"):
            self._success.labels(model, reason)
        for error in (EngineDead, DeadlineExceeded, Overloaded):
            self._failed.labels(model, error.code or error.kind)
        self._own.register(state)
        self._registry.register(_Aliased(self._own))
        ProcessCollector(registry=self._registry)  # of this process: memory, descriptors, when it began

    def first_token(self, seconds: float, prompt_tokens: int) -> None:
        self._first.labels(self._model).observe(seconds)
        self._prompt.labels(self._model).inc(prompt_tokens)

    def between_tokens(self, seconds: float) -> None:
        self._between.labels(self._model).observe(seconds)

    def tokens(self, count: int) -> None:
        self._generated.labels(self._model).inc(count)

    def finished(self, reason: str, *, seconds: float, decode: float, tokens: int, usage: Usage | None) -> None:
        """A choice that ran to its end; `decode` are the seconds from its first token to its last."""
        self._success.labels(self._model, reason).inc()
        self._whole.labels(self._model).observe(seconds)
        self._decode.labels(self._model).observe(decode)
        if tokens > 1:
            self._per_token.labels(self._model).observe(decode / (tokens - 1))
        if usage is not None:
            self._queue.labels(self._model).observe(usage.queue_seconds)
            self._prefill.labels(self._model).observe(usage.prefill_seconds)
            self._inference.labels(self._model).observe(usage.prefill_seconds + decode)

    def left(self) -> None:
        """A choice whose caller did not wait for its end."""
        self._success.labels(self._model, "abort").inc()

    def failed(self, code: str) -> None:
        self._failed.labels(self._model, code).inc()

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"{PREFIX}:{name}_seconds", text, ["model_name"], registry=self._own, buckets=buckets)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}:{name}", text, ["model_name", *labels], registry=self._own)


class _Aliased(Collector):
    """Every metric, and those that vLLM shares once more under its name."""

    def __init__(self, own: CollectorRegistry) -> None:
        self._own = own

    def collect(self) -> Iterator[Metric]:
        for metric in self._own.collect():
            yield metric
            if metric.name in _SHARED:
                alias = Metric(_renamed(metric.name), metric.documentation, metric.type)
                alias.samples = [sample._replace(name=_renamed(sample.name)) for sample in metric.samples]
                yield alias


def _renamed(name: str) -> str:
    return _ALIAS + name.removeprefix(PREFIX)

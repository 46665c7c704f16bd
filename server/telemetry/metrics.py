"""Prometheus metrics of requests: Aerie's names, with vLLM's as aliases, so that existing tools can read them.

`generation` reports requests; `state_metrics` adds the rest when /metrics is read. Counters get `_total` on the wire.
docs/metrics.md lists them all.
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

from aerie.contracts.errors import DeadlineExceeded, EngineDead, Overloaded, QueueTimeout
from aerie.contracts.messages import Usage

PER_TOKEN_BUCKETS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
TOKENS_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000)
CHOICES_BUCKETS = (1, 2, 5, 10, 20)
WAIT_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 600)

PREFIX = "aerie"
_ALIAS = "vllm"
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("From arrival to the first token", WAIT_BUCKETS),
    "inter_token_latency_seconds": (
        "Between the steps of a request that committed tokens, of any number",
        PER_TOKEN_BUCKETS,
    ),
    "request_time_per_output_token_seconds": (
        "(last - first token) / (tokens - 1), once a request",
        PER_TOKEN_BUCKETS,
    ),
    "e2e_request_latency_seconds": ("From arrival to the end", WAIT_BUCKETS),
    "request_queue_time_seconds": ("From the queue's end to its front", WAIT_BUCKETS),
    "request_prefill_time_seconds": ("From the first prefill step to the last", WAIT_BUCKETS),
    "request_decode_time_seconds": ("From the first token to the last", WAIT_BUCKETS),
    "request_inference_time_seconds": ("From the first prefill step to the last token", WAIT_BUCKETS),
    "request_prompt_tokens": ("Prompt tokens of a choice that ended", TOKENS_BUCKETS),
    "request_prefill_kv_computed_tokens": ("Those of them that the prefix cache did not have", TOKENS_BUCKETS),
    "request_generation_tokens": ("Tokens of a choice that ended", TOKENS_BUCKETS),
    "request_max_num_generation_tokens": ("Tokens of the longest choice of a prompt", TOKENS_BUCKETS),
    "request_params_max_tokens": ("Tokens that a choice that ended was allowed", TOKENS_BUCKETS),
    "request_params_n": ("Choices of a prompt", CHOICES_BUCKETS),
}
"""Each histogram's description and its buckets' upper edges. vLLM has all of them under the same names."""
_SHARED = frozenset(
    f"{PREFIX}:{name}"
    for name in (
        *_HISTOGRAMS,
        "iteration_tokens_total",
        "cache_config_info",
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
"""Metrics that vLLM has under the same name with the same meaning."""


class Metrics:
    """`state` collects the metrics that do not come from requests."""

    def __init__(self, model: str, state: Collector) -> None:
        # Otherwise every series gets a second, unused one.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._model = model
        self._registry = CollectorRegistry()
        self._own = CollectorRegistry()
        self._histograms = {
            name: Histogram(f"{PREFIX}:{name}", text, ["model_name"], registry=self._own, buckets=buckets)
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        self._prompt = self._counter(
            "prompt_tokens", "Prompt tokens of requests that got a token, cached ones included"
        )
        self._generated = self._counter("generation_tokens", "Tokens of answers")
        self._success = self._counter(
            "request_success", "Choices that ended; abort: their caller left", "finished_reason"
        )
        self._failed = self._counter("request_failure", "Requests that ended with an error", "code")
        self._unparsed = self._counter(
            "tool_parse_failures", "Markers of tool calls that no call followed, and calls whose arguments are not JSON"
        )
        self._unparsed.labels(model)
        # Starts at zero, so that the first event counts as an increase.
        for reason in ("stop", "length", "abort"):
            self._success.labels(model, reason)
        for error in (EngineDead, DeadlineExceeded, QueueTimeout, Overloaded):
            self._failed.labels(model, error.code or error.kind)
        self._own.register(state)
        self._registry.register(_Aliased(self._own))
        self._requests = Counter(
            "http_requests",
            "Requests over HTTP, answered or left",
            ["handler", "method", "status"],
            registry=self._registry,
        )
        self._durations = Histogram(
            "http_request_duration_seconds",
            "From a request's head to the end of its answer",
            ["handler", "method"],
            registry=self._registry,
            buckets=WAIT_BUCKETS,
        )
        ProcessCollector(registry=self._registry)  # this process: memory, descriptors, start time

    def first_token(self, seconds: float, prompt_tokens: int) -> None:
        self._observe("time_to_first_token_seconds", seconds)
        self._prompt.labels(self._model).inc(prompt_tokens)

    def between_tokens(self, seconds: float) -> None:
        self._observe("inter_token_latency_seconds", seconds)

    def tokens(self, count: int) -> None:
        self._generated.labels(self._model).inc(count)

    def finished(
        self, reason: str, *, seconds: float, decode: float, prompt: int, tokens: int, allowed: int, usage: Usage | None
    ) -> None:
        """Records a choice that ran to its end with `tokens` of the `allowed`; `decode` is the time in seconds from its
        first token to its last.
        """
        self._success.labels(self._model, reason).inc()
        self._observe("e2e_request_latency_seconds", seconds)
        self._observe("request_decode_time_seconds", decode)
        self._observe("request_prompt_tokens", prompt)
        self._observe("request_generation_tokens", tokens)
        self._observe("request_params_max_tokens", allowed)
        if tokens > 1:
            self._observe("request_time_per_output_token_seconds", decode / (tokens - 1))
        if usage is not None:
            self._observe("request_queue_time_seconds", usage.queue_seconds)
            self._observe("request_prefill_time_seconds", usage.prefill_seconds)
            self._observe("request_inference_time_seconds", usage.prefill_seconds + decode)
            self._observe("request_prefill_kv_computed_tokens", prompt - usage.cached_tokens)

    def answered(self, tokens: list[int]) -> None:
        """Records a prompt whose choices have all ended; `tokens` holds the length of each."""
        self._observe("request_params_n", len(tokens))
        self._observe("request_max_num_generation_tokens", max(tokens))

    def unparsed(self, failures: int) -> None:
        self._unparsed.labels(self._model).inc(failures)

    def left(self) -> None:
        """Records a choice whose caller disconnected before its end."""
        self._success.labels(self._model, "abort").inc()

    def failed(self, code: str) -> None:
        self._failed.labels(self._model, code).inc()

    def http(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Records a finished request of any kind; `handler` is its route's path."""
        self._requests.labels(handler, method, str(status)).inc()
        self._durations.labels(handler, method).observe(seconds)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].labels(self._model).observe(value)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}:{name}", text, ["model_name", *labels], registry=self._own)


class _Aliased(Collector):
    """Yields every metric, and again under vLLM's name if vLLM has it too."""

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

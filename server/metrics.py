"""Prometheus metrics: Aerie's names, each with vLLM's as an alias, so that the field's tools can read acceptance here.

`generation` reports what requests went through; the scheduler's newest Snapshot gives the rest when /metrics is asked.
Counters get `_total` on the wire.
"""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from contracts.messages import Snapshot, Usage
from server.admission import Admission
from server.client import Engine

PER_TOKEN_BUCKETS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
WAIT_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 600)

_PREFIX = "aerie"
_ALIAS = "vllm"


class Metrics:
    def __init__(self, model: str, engine: Engine, admission: Admission) -> None:
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
        self._prompt = self._counter(
            "prompt_tokens", "Prompt tokens of requests that got a token, cached ones included"
        )
        self._generated = self._counter("generation_tokens", "Tokens of answers")
        self._success = self._counter("request_success", "Requests that ran to an end", "finished_reason")
        self._failed = self._counter("request_failure", "Requests that ended with an error", "code")
        self._own.register(_FromSnapshot(model, engine, admission))
        self._registry.register(_Aliased(self._own))

    def first_token(self, seconds: float, prompt_tokens: int) -> None:
        self._first.labels(self._model).observe(seconds)
        self._prompt.labels(self._model).inc(prompt_tokens)

    def between_tokens(self, seconds: float) -> None:
        self._between.labels(self._model).observe(seconds)

    def tokens(self, count: int) -> None:
        self._generated.labels(self._model).inc(count)

    def finished(self, reason: str, *, seconds: float, per_token: float | None, usage: Usage | None) -> None:
        self._success.labels(self._model, reason).inc()
        self._whole.labels(self._model).observe(seconds)
        if per_token is not None:
            self._per_token.labels(self._model).observe(per_token)
        if usage is not None:
            self._queue.labels(self._model).observe(usage.queue_seconds)
            self._prefill.labels(self._model).observe(usage.prefill_seconds)

    def failed(self, code: str) -> None:
        self._failed.labels(self._model, code).inc()

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"{_PREFIX}:{name}_seconds", text, ["model_name"], registry=self._own, buckets=buckets)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{_PREFIX}:{name}", text, ["model_name", *labels], registry=self._own)


class _Aliased(Collector):
    """Every metric under both names."""

    def __init__(self, own: CollectorRegistry) -> None:
        self._own = own

    def collect(self) -> Iterator[Metric]:
        for metric in self._own.collect():
            yield metric
            alias = Metric(_ALIAS + metric.name.removeprefix(_PREFIX), metric.documentation, metric.type)
            alias.samples = [
                sample._replace(name=_ALIAS + sample.name.removeprefix(_PREFIX)) for sample in metric.samples
            ]
            yield alias


class _FromSnapshot(Collector):
    def __init__(self, model: str, engine: Engine, admission: Admission) -> None:
        self._model = model
        self._engine = engine
        self._admission = admission

    def collect(self) -> Iterable[Metric]:
        yield self._counter("admission_rejections", "Requests refused with 503", self._admission.rejections, "reason")
        yield self._gauge("places_taken", "Choices that run or wait, as the server counts them", self._admission.taken)
        snapshot = self._engine.snapshot
        if snapshot is not None:
            yield from self._gauges(snapshot)
            yield from self._counters(snapshot)

    def _gauges(self, now: Snapshot) -> Iterator[Metric]:
        used = now.pages_used / now.pages_total if now.pages_total else 0.0
        yield self._gauge("num_requests_running", "Requests that hold a row", now.running)
        yield self._gauge("num_requests_waiting", "Requests in the scheduler's queue", now.waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of KV pages in use, 0 to 1", used)

    def _counters(self, now: Snapshot) -> Iterator[Metric]:
        per_position = {str(position): count for position, count in enumerate(now.accepted_per_position)}
        plain: list[tuple[str, str, float]] = [
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache", now.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found there", now.prefix_hits),
            ("num_preemptions", "Requests set back to the queue", now.preemptions),
            ("spec_decode_num_drafts", "Rows drafted for, summed over steps", now.drafts),
            ("spec_decode_num_draft_tokens", "Nodes drafted", now.drafted),
            ("spec_decode_num_accepted_tokens", "Drafted tokens accepted", now.accepted),
            ("steps", "Steps of the device", now.steps),
            ("prefill_tokens", "Prompt tokens computed", now.prefill_tokens),
            ("committed_tokens", "Tokens committed, bonus included", now.committed),
            ("device_busy_seconds", "Seconds that the lane worked", now.busy_seconds),
            ("device_idle_seconds", "Seconds without work while requests waited or ran", now.idle_seconds),
            ("scheduler_host_seconds", "Seconds that the scheduler itself worked", now.host_seconds),
        ]
        for name, text, value in plain:
            yield self._counter(name, text, {"": value})
        name = "spec_decode_num_accepted_tokens_per_pos"
        yield self._counter(name, "Drafted tokens accepted, by depth", per_position, "position")
        yield self._counter("device_phase_seconds", "Seconds of the lane by phase", now.phase_seconds, "phase")

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        gauge = GaugeMetricFamily(f"{_PREFIX}:{name}", text, labels=["model_name"])
        gauge.add_metric([self._model], value)
        return gauge

    def _counter(self, name: str, text: str, values: dict[str, int] | dict[str, float], label: str = "") -> Metric:
        """One sample for each value; `label` names what their keys are, if they are anything."""
        counter = CounterMetricFamily(f"{_PREFIX}:{name}", text, labels=["model_name", *([label] if label else [])])
        for key, value in values.items():
            counter.add_metric([self._model, *([key] if label else [])], value)
        return counter

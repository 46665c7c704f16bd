"""Prometheus metrics under Aerie's names, with vLLM's as aliases so that its tools read acceptance from us too."""

import json
import logging
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from contracts.messages import Snapshot, Usage
from server.admission import Admission

_log = logging.getLogger("aerie.requests")
_TOKEN_BUCKETS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2)
_FIRST_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.25, 2.5, 5, 10, 20, 40, 80)
_PREFIXES = ("aerie", "vllm")


class Metrics:
    """One registry per server. Every figure is exported under `aerie:` and, as an alias, under `vllm:`."""

    def __init__(self, model: str, admission: Admission) -> None:
        self._registry = CollectorRegistry()
        self._model = model
        self.snapshot: Snapshot | None = None
        self._first = self._histograms("time_to_first_token_seconds", "Arrival to first token", _FIRST_BUCKETS)
        self._between = self._histograms("inter_token_latency_seconds", "Between token events", _TOKEN_BUCKETS)
        self._per_token = self._histograms(
            "request_time_per_output_token_seconds", "(last - first token) / (tokens - 1)", _TOKEN_BUCKETS
        )
        self._whole = self._histograms("e2e_request_latency_seconds", "Arrival to end", _FIRST_BUCKETS)
        self._queue = self._histograms("request_queue_time_seconds", "Arrival to first prefill", _FIRST_BUCKETS)
        self._prefill = self._histograms("request_prefill_time_seconds", "First prefill to first token", _FIRST_BUCKETS)
        self._prompt = self._counters("prompt_tokens", "Prompt tokens of ended requests")
        self._generated = self._counters("generation_tokens", "Tokens given to callers")
        self._success = self._counters("request_success", "Ended requests", ("finished_reason",))
        self._registry.register(_SnapshotCollector(lambda: self.snapshot, model, admission))

    def begin(self, prompt_tokens: int) -> "Timing":
        return Timing(self, prompt_tokens)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def first(self, seconds: float) -> None:
        self._observe(self._first, seconds)

    def between(self, seconds: float) -> None:
        self._observe(self._between, seconds)

    def generated(self, tokens: int) -> None:
        for counter in self._generated:
            counter.labels(self._model).inc(tokens)

    def ended(self, reason: str, usage: Usage, *, per_token: float | None, whole: float) -> None:
        if per_token is not None:
            self._observe(self._per_token, per_token)
        self._observe(self._whole, whole)
        self._observe(self._queue, usage.queue_seconds)
        self._observe(self._prefill, usage.prefill_seconds)
        for prompt, success in zip(self._prompt, self._success, strict=True):
            prompt.labels(self._model).inc(usage.prompt_tokens)
            success.labels(self._model, reason).inc()

    def _histograms(self, name: str, text: str, buckets: tuple[float, ...]) -> list[Histogram]:
        return [
            Histogram(f"{prefix}:{name}", text, ("model_name",), buckets=buckets, registry=self._registry)
            for prefix in _PREFIXES
        ]

    def _counters(self, name: str, text: str, labels: tuple[str, ...] = ()) -> list[Counter]:
        return [
            Counter(f"{prefix}:{name}", text, ("model_name", *labels), registry=self._registry) for prefix in _PREFIXES
        ]

    def _observe(self, histograms: list[Histogram], seconds: float) -> None:
        for histogram in histograms:
            histogram.labels(self._model).observe(seconds)


class Timing:
    """The clock of one choice; ends in one line of the log, which never holds text."""

    def __init__(self, metrics: Metrics, prompt_tokens: int) -> None:
        self._metrics = metrics
        self._prompt_tokens = prompt_tokens
        self._began = time.monotonic()
        self._first: float | None = None
        self._last = self._began
        self._tokens = 0

    def tokens(self, count: int, now: float) -> None:
        if self._first is None:
            self._first = now
            self._metrics.first(now - self._began)
        else:
            self._metrics.between(now - self._last)
        self._last = now
        self._tokens += count
        self._metrics.generated(count)

    def finish(self, reason: str, usage: Usage, request_id: str) -> None:
        whole = time.monotonic() - self._began
        decoding = None if self._first is None or self._tokens < 2 else (self._last - self._first) / (self._tokens - 1)
        self._metrics.ended(reason, usage, per_token=decoding, whole=whole)
        line = {
            "id": request_id,
            "reason": reason,
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._tokens,
            "cached_tokens": usage.cached_tokens,
            "steps": usage.steps,
            "accepted": usage.accepted,
            "accepted_per_position": usage.accepted_per_position,
            "ttft_seconds": None if self._first is None else round(self._first - self._began, 6),
            "tpot_seconds": None if decoding is None else round(decoding, 6),
            "e2e_seconds": round(whole, 6),
        }
        _log.info(json.dumps(line))


class _SnapshotCollector(Collector):
    """Gauges and counters of the scheduler's newest snapshot, and the server's own queue."""

    def __init__(self, snapshot: Callable[[], Snapshot | None], model: str, admission: Admission) -> None:
        self._snapshot = snapshot
        self._model = model
        self._admission = admission

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        for prefix in _PREFIXES:
            rejections = CounterMetricFamily(
                f"{prefix}:admission_rejections", "Requests answered 503", labels=("model_name", "reason")
            )
            for reason, count in self._admission.rejected.items():
                rejections.add_metric((self._model, reason), count)
            yield rejections
            if (snapshot := self._snapshot()) is not None:
                yield from self._of(prefix, snapshot)

    def _of(self, prefix: str, snapshot: Snapshot) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        for name, text, value in (
            ("num_requests_running", "Requests that hold a row", snapshot.running),
            ("num_requests_waiting", "Requests in the queue", snapshot.waiting),
            ("kv_cache_usage_perc", "Share of pages in use", snapshot.pages_used / max(snapshot.pages_total, 1)),
        ):
            yield _gauge(f"{prefix}:{name}", text, self._model, value)
        for name, text, count in (
            ("prefix_cache_queries", "Prompt tokens looked up", snapshot.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found", snapshot.prefix_hits),
            ("num_preemptions", "Requests set back", snapshot.preemptions),
            ("spec_decode_num_drafts", "Rows drafted for", snapshot.drafts),
            ("spec_decode_num_draft_tokens", "Nodes drafted", snapshot.drafted),
            ("spec_decode_num_accepted_tokens", "Nodes accepted", snapshot.accepted),
            ("steps", "Steps of the device", snapshot.steps),
            ("idle_seconds", "Seconds in which requests were there and the lane had no work", snapshot.idle_seconds),
            ("host_seconds", "Seconds that the scheduler worked", snapshot.host_seconds),
        ):
            yield _counter(f"{prefix}:{name}", text, (("model_name", self._model),), count)
        positions = CounterMetricFamily(
            f"{prefix}:spec_decode_num_accepted_tokens_per_pos", "Accepted at depth", labels=("model_name", "position")
        )
        for position, count in enumerate(snapshot.accepted_per_position):
            positions.add_metric((self._model, str(position)), count)
        yield positions
        phases = CounterMetricFamily(f"{prefix}:phase_seconds", "Lane seconds by phase", labels=("model_name", "phase"))
        for phase, seconds in snapshot.phase_seconds.items():
            phases.add_metric((self._model, phase), seconds)
        yield phases


def _gauge(name: str, text: str, model: str, value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=("model_name",))
    family.add_metric((model,), value)
    return family


def _counter(name: str, text: str, labels: tuple[tuple[str, str], ...], value: float) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=tuple(key for key, _ in labels))
    family.add_metric(tuple(label for _, label in labels), value)
    return family

"""Prometheus metrics of the current state of server and scheduler, computed when /metrics is read.

Collected by `metrics`: admission from the server itself, the rest from the scheduler's latest Snapshot.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from aerie.contracts.config import Config
from aerie.contracts.messages import STEP_TOKENS, GrammarSnapshot, PlannerSnapshot, Snapshot
from aerie.server.dispatch.admission import Admission
from aerie.server.dispatch.client import Engine
from aerie.server.telemetry.metrics import PREFIX

_PHASES = ("prefill", "draft", "verify", "accept", "extend")
"""Reported from the start, so that the first step of each kind counts as an increase."""


class State(Collector):
    """`promised`: the acceptance length that the head's card promises, if any."""

    def __init__(
        self,
        model: str,
        config: Config,
        engine: Engine,
        admission: Admission,
        *,
        version: str,
        promised: float | None = None,
    ) -> None:
        self._model = model
        self._config = config
        self._engine = engine
        self._admission = admission
        self._version = version
        self._promised = promised

    def collect(self) -> Iterable[Metric]:
        info = GaugeMetricFamily(f"{PREFIX}:info", "1, with the version", labels=["model_name", "version"])
        info.add_metric([self._model, self._version], 1)
        yield info
        yield self._counter("admission_rejections", "Requests refused with 503", self._admission.rejections, "reason")
        yield self._gauge("places_taken", "Choices that run or wait, as the server counts them", self._admission.taken)
        yield self._gauge("draining", "1 while the server shuts down and takes no requests", self._admission.draining)
        if self._promised is not None:
            text = "Acceptance length that the head's card promises, over the depths that every draft reaches"
            yield self._gauge("spec_decode_promised_acceptance_length", text, self._promised)
        snapshot = self._engine.snapshot
        if snapshot is not None:
            yield from self._gauges(snapshot)
            yield from self._counters(snapshot)
            yield from self._grammars(snapshot.grammars)
            if snapshot.step_tokens:
                yield self._steps(snapshot)

    def _gauges(self, now: Snapshot) -> Iterator[Metric]:
        used = now.pages_used / now.pages_total if now.pages_total else 0.0
        yield self._gauge("num_requests_running", "Requests that hold a row", now.running)
        yield self._gauge("spec_decode_head_off", "1 once a useless head was switched off", now.head_off)
        yield self._gauge("num_requests_waiting", "Requests in the scheduler's queue", now.waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of KV pages in use, 0 to 1", used)
        yield self._gauge("kv_pages_used", "KV pages that requests hold", now.pages_used)
        yield self._gauge("kv_pages_total", "KV pages that there are", now.pages_total)
        yield self._cache(now)
        if now.planner is not None:
            yield from self._planner(now.planner)

    def _planner(self, now: PlannerSnapshot) -> Iterator[Metric]:
        text = "Levels that the last planned step drafts; 0 decodes plainly"
        yield self._gauge("spec_decode_draft_depth", text, now.depth)
        text = "Nodes that the last planned step verifies for a row at most, root included"
        yield self._gauge("spec_decode_draft_nodes", text, now.nodes)
        text = "Recent mean of |predicted - accepted| nodes over the predicted nodes of a step"
        yield self._gauge("spec_decode_calibration_error", text, now.calibration_error)
        text = "Tokens a second of the best draft over those of plain steps, predicted at the last choice; 0 if unknown"
        yield self._gauge("spec_decode_predicted_gain", text, now.gain)
        text = "1, with why the planner made its last choice"
        choice = GaugeMetricFamily(f"{PREFIX}:spec_decode_choice_info", text, labels=["model_name", "reason"])
        choice.add_metric([self._model, now.reason], 1)
        yield choice
        steps = {str(depth): count for depth, count in sorted(now.steps_by_depth.items())}
        yield self._counter("spec_decode_planned_steps", "Decode steps by planned depth", steps, "depth")
        sums: list[tuple[str, str, float]] = [
            ("predicted_tokens", "Tokens that the planner expected of its steps", now.predicted_tokens),
            ("predicted_seconds", "Seconds that it expected them to take", now.predicted_seconds),
            ("planned_tokens", "Tokens that the same steps committed", now.tokens),
            ("planned_seconds", "Seconds that they took", now.seconds),
            ("regret_tokens", "Tokens that plain decoding would have been ahead by, where it would", now.regret_tokens),
            ("resting_seconds", "Seconds of decode steps that drafted nothing", now.resting_seconds),
            ("recomputed_requests", "Requests that computed their tokens again to be drafted for", now.recomputed),
        ]
        yield from self._sums(sums, "spec_decode_")

    def _grammars(self, now: GrammarSnapshot) -> Iterator[Metric]:
        sums: list[tuple[str, str, float]] = [
            ("steps", "Steps in which a row chose under a grammar", now.steps),
            ("choices", "Choices along the paths of such rows", now.choices),
            ("masks", "Masks made for them", now.masks),
            ("distinct_masks", "How many of these were different from the others of their step", now.distinct_masks),
            ("mask_seconds", "CPU seconds to make the masks", now.mask_seconds),
            ("drafts", "Drafted tokens of such rows", now.drafted),
            ("forbidden_drafts", "Drafted tokens that the target would have chosen, were they allowed", now.forbidden),
            ("forced_drafts", "Drafted tokens that a grammar forced, which no head had to guess", now.forced),
            ("late_rows", "Rows that committed nothing in a step, because a mask was not ready", now.late),
            ("builds", "Grammars built by the lane", now.builds),
            ("build_seconds", "Seconds to build them", now.build_seconds),
            ("reused", "Grammars that had been built for an earlier request", now.reused),
        ]
        yield from self._sums(sums, "grammar_")

    def _sums(self, sums: list[tuple[str, str, float]], prefix: str = "") -> Iterator[Metric]:
        """Counters without labels, each a name, a help text and a value."""
        for name, text, value in sums:
            yield self._counter(prefix + name, text, {"": value})

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
        yield from self._sums(plain)
        phases = dict.fromkeys(_PHASES, 0.0) | now.phase_seconds
        name = "spec_decode_num_accepted_tokens_per_pos"
        yield self._counter(name, "Drafted tokens accepted, by depth", per_position, "position")
        yield self._counter("device_phase_seconds", "Seconds of the lane by phase", phases, "phase")

    def _cache(self, now: Snapshot) -> Metric:
        """Uses vLLM's format, which routers that route requests by prefix read."""
        cache = {
            "block_size": str(1 if self._config.engine.kind == "sglang" else self._config.engine.page_size),
            "num_gpu_blocks": str(now.pages_total),
            "enable_prefix_caching": str(self._config.scheduler.prefix_cache),
        }
        text = "1, with the tokens of a KV page, the number of pages (on any device) and whether prefixes are cached"
        info = GaugeMetricFamily(f"{PREFIX}:cache_config_info", text, labels=["model_name", *cache])
        info.add_metric([self._model, *cache.values()], 1)
        return info

    def _steps(self, now: Snapshot) -> Metric:
        edges = [*map(str, map(float, STEP_TOKENS)), "+Inf"]
        buckets = list(zip(edges, accumulate(now.step_tokens), strict=True))
        text = "Tokens of a step: computed of prompts, and committed"
        steps = HistogramMetricFamily(f"{PREFIX}:iteration_tokens_total", text, labels=["model_name"])
        steps.add_metric([self._model], buckets, sum_value=now.prefill_tokens + now.committed)
        return steps

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        gauge = GaugeMetricFamily(f"{PREFIX}:{name}", text, labels=["model_name"])
        gauge.add_metric([self._model], value)
        return gauge

    def _counter(self, name: str, text: str, values: dict[str, int] | dict[str, float], label: str = "") -> Metric:
        """Adds one sample per value; `label`, if given, is the label whose values are the keys."""
        counter = CounterMetricFamily(f"{PREFIX}:{name}", text, labels=["model_name", *([label] if label else [])])
        for key, value in values.items():
            counter.add_metric([self._model, *([key] if label else [])], value)
        return counter

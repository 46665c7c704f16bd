"""`aerie probe overlap`: whether the CPU keeps a fast device waiting.

The real scheduler drives a lane that does nothing but take as long as an 8B model on an H100 would: the roofline of
that model and device, which is faster than any real one, so the figures here are the worst case for the host. Accepted
tokens are *simulated* (drawn at random). Called by the command line; needs no model, no torch and no GPU.
"""

import gc
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.bench.measured import PERCENTS
from aerie.contracts import wire
from aerie.contracts.config import Config, SchedulerConfig
from aerie.contracts.messages import Batch, Generate
from aerie.contracts.sampling import SamplingParams
from aerie.contracts.spec_section import SpecConfig
from aerie.contracts.step import Capacity, Ending, Ints, StepOutput, StepPlan
from aerie.engine.lanes.preparing import NoGrammars
from aerie.scheduler import Scheduler

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_PAGE = 16


@dataclass(frozen=True, slots=True)
class Roofline:
    """Llama-3.1-8B in bf16 with an EAGLE-3 head, on one H100 SXM at its peak figures."""

    bandwidth: float = 3.35e12
    flops: float = 989e12
    weight_bytes: float = 15.0e9
    parameters: float = 7.5e9
    kv_bytes: float = 131_072.0
    """Bytes per context token."""
    attention_flops: float = 524_288.0
    """Operations per pair of query token and context token."""
    draft_seconds: float = 0.24e-3
    """Seconds of one drafted level, for any batch that fits under the head's own ridge."""
    draft_token_seconds: float = 1.2e-6

    def step_seconds(self, lengths: Ints, tokens: int, depth: int, drafted: int) -> float:
        """Seconds to verify `tokens` over rows of these lengths, after drafting `drafted` nodes on `depth` levels."""
        context = float(lengths.sum())
        dense = max(self.weight_bytes / self.bandwidth, 2 * self.parameters * tokens / self.flops)
        attended = context * tokens / max(len(lengths), 1)
        attention = max(self.kv_bytes * context / self.bandwidth, self.attention_flops * attended / self.flops)
        return dense + attention + depth * self.draft_seconds + drafted * self.draft_token_seconds


class RooflineLane(NoGrammars):
    """A lane that is busy for each step's time and records when it was idle.

    Settling polls the clock, as waiting for a CUDA event does by default: exact to a microsecond, and the core stays
    with the scheduler. Outputs are made inside the wait. Before `start` steps take no time, so that rows get their
    prompts.
    """

    def __init__(self, capacity: Capacity, roofline: Roofline, *, acceptance: float, seed: int = 0) -> None:
        self._capacity = capacity
        self._roofline = roofline
        self._acceptance = acceptance
        self._random = np.random.default_rng(seed)
        self._lengths: Ints = np.zeros(capacity.rows, dtype=np.int32)
        self._plans: deque[tuple[StepPlan, float]] = deque()
        self._started = False
        self.start()
        self._started = False

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def start(self) -> None:
        """From here on steps take their time and are counted."""
        self._started = True
        self._free_at = time.perf_counter()
        self.steps = 0
        self.busy_seconds = 0.0
        self.idle_seconds = 0.0
        self.wait_seconds = 0.0
        self.wait_cpu_seconds = 0.0
        self.committed = 0

    def launch(self, plan: StepPlan) -> None:
        now = time.perf_counter()
        seconds = self._seconds(plan) if self._started else 0.0
        if self._started:
            self.idle_seconds += max(0.0, now - self._free_at)
        self._free_at = max(now, self._free_at) + seconds
        self.busy_seconds += seconds
        self.steps += 1
        self._plans.append((plan, self._free_at))

    def settle(self) -> StepOutput:
        started, cpu = time.perf_counter(), time.thread_time()
        plan, ready = self._plans.popleft()
        output = self._output(plan)
        if self._started:
            while time.perf_counter() < ready:
                pass
        self.committed += int(output.counts.sum())
        self.wait_seconds += time.perf_counter() - started
        self.wait_cpu_seconds += time.thread_time() - cpu
        return output

    def close(self) -> None:
        self._plans.clear()

    def _seconds(self, plan: StepPlan) -> float:
        if plan.decode is None:
            assert plan.prefill is not None
            return self._roofline.step_seconds(plan.prefill.starts, len(plan.prefill.token_ids), 0, 0)
        tokens = int(plan.decode.nodes.sum())
        return self._roofline.step_seconds(plan.decode.bounds, tokens, plan.decode.depth, tokens - len(plan.rows))

    def _output(self, plan: StepPlan) -> StepOutput:
        rows = plan.rows
        size = len(rows)
        none = np.zeros(size, dtype=np.int32)
        if plan.prefill is not None:
            counts, accepted, drafted, depth = plan.prefill.is_last.astype(np.int32), none, none, 0
            self._lengths[rows] = plan.prefill.starts + plan.prefill.counts
        else:
            assert plan.decode is not None
            depth = plan.decode.depth
            hits = self._random.random((size, depth)) < self._acceptance
            accepted = np.cumprod(hits, axis=1, dtype=np.int32).sum(axis=1, dtype=np.int32)
            counts, drafted = accepted + 1, plan.decode.nodes - 1
            self._lengths[rows] += counts
        return StepOutput(
            number=plan.number,
            token_ids=self._random.integers(2, self._capacity.vocabulary, (size, depth + 1), dtype=np.int32),
            counts=counts,
            accepted=accepted,
            drafted=drafted,
            lengths=self._lengths[rows],
            endings=np.full(size, Ending.OPEN, dtype=np.int32),
        )


def measure_overlap(
    batches: Sequence[int] = BATCHES, *, steps: int = 200, prompt: int = 1000, depth: int = 3, acceptance: float = 0.75
) -> list[dict[str, Any]]:
    """One cell for each batch size, overlapped and synchronous; rows begin with `prompt` tokens of context."""
    return [
        _measure(batch, overlap=overlap, steps=steps, prompt=prompt, depth=depth, acceptance=acceptance)
        for batch in batches
        for overlap in (True, False)
    ]


def _measure(batch: int, *, overlap: bool, steps: int, prompt: int, depth: int, acceptance: float) -> dict[str, Any]:
    warm_up = 20
    length = prompt + (steps + warm_up + 8) * (depth + 1)
    pages = batch * (-(-(length + depth + 1) // _PAGE) + 1) + 1
    capacity = Capacity(
        rows=batch, pages=pages, page_size=_PAGE, max_length=length, vocabulary=128_256, end_ids=(1,), drafts=True,
        reserve=depth + 1,
    )  # fmt: skip
    lane = RooflineLane(capacity, Roofline(), acceptance=acceptance)
    config = Config(
        scheduler=SchedulerConfig(overlap=overlap, max_running=batch, prefill_chunk=8192),
        spec=SpecConfig(depth=depth, nodes=depth + 1),
    )
    scheduler = Scheduler(lane, config)
    _fill(scheduler, batch, prompt, length)
    for _ in range(warm_up):
        _say(scheduler)
    gc.collect()
    gc.freeze()
    lane.start()
    cpu, hosts = _run(scheduler, lane, steps)
    gc.unfreeze()
    wall = lane.busy_seconds + lane.idle_seconds
    return {
        "batch": batch,
        "overlap": overlap,
        "step_ms": 1e3 * wall / lane.steps,
        "device_ms": 1e3 * lane.busy_seconds / lane.steps,
        "host_ms_per_step": 1e3 * cpu / steps,
        "host_wall_ms_p50": float(1e3 * np.percentile(hosts, 50)),
        "host_wall_ms_p99": float(1e3 * np.percentile(hosts, 99)) if steps >= PERCENTS[99] else None,
        "idle_share": lane.idle_seconds / wall,
        "tokens_per_s": lane.committed / wall,
        "acceptance_length": lane.committed / (batch * lane.steps),
        "acceptance": "simulated",
    }


def _fill(scheduler: Scheduler, batch: int, prompt: int, length: int) -> None:
    """Brings `batch` rows through their prompts to decoding."""
    tokens = np.random.default_rng(1).integers(2, 128_000, (batch, prompt))
    sampling = SamplingParams(max_tokens=length, ignore_eos=True)
    for row in range(batch):
        scheduler.submit(Generate(id=f"request-{row}", prompt=tokens[row].tolist(), sampling=sampling))
    while scheduler.rows.decoding.sum() < batch:
        _say(scheduler)


def _run(scheduler: Scheduler, lane: RooflineLane, steps: int) -> tuple[float, NDArray[np.float64]]:
    """The host's part of `steps` iterations, everything but the wait: total CPU seconds, and the wall
    seconds of each iteration.

    CPU time is the figure, since it excludes other processes on this machine; wall time shows their effect.
    """
    hosts = np.zeros(steps)
    cpu, waited_cpu = time.thread_time(), lane.wait_cpu_seconds
    for step in range(steps):
        waited, started = lane.wait_seconds, time.perf_counter()
        _say(scheduler)
        hosts[step] = time.perf_counter() - started - (lane.wait_seconds - waited)
    return time.thread_time() - cpu - (lane.wait_cpu_seconds - waited_cpu), hosts


def _say(scheduler: Scheduler) -> None:
    """One iteration with everything that a scheduler process does except the socket."""
    replies = scheduler.iterate()
    if replies:
        wire.encode(Batch(messages=replies))


def table(cells: list[dict[str, Any]]) -> str:
    """The cells as a printable table."""
    lines = ["batch  loop         step ms  device ms  host ms  (wall p50,    p99)   idle %"]
    for cell in cells:
        loop = "overlapped" if cell["overlap"] else "synchronous"
        lines.append(
            f"{cell['batch']:5d}  {loop:11s}  {cell['step_ms']:7.2f}  {cell['device_ms']:9.2f}  "
            f"{cell['host_ms_per_step']:7.3f}  ({cell['host_wall_ms_p50']:8.3f}, {_tail(cell)})  "
            f"{100 * cell['idle_share']:7.2f}"
        )
    return "\n".join(lines)


def _tail(cell: dict[str, Any]) -> str:
    tail = cell["host_wall_ms_p99"]
    return f"{tail:6.3f}" if tail is not None else f"{'-':>6}"

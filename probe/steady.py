"""A steadily decoding batch: a fixed number of rows, one step after the other, no arrivals or departures.

The GPU measurements (`gpu_bench`) run it; any lane will do. The wall time of a step is split into the lane's work, the
host's work beside it, and the rest.
"""

import gc
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aerie.contracts import wire
from aerie.contracts.config import Config
from aerie.contracts.errors import AerieError, ConfigError
from aerie.contracts.messages import Batch, Failed, Generate
from aerie.contracts.sampling import SamplingParams
from aerie.contracts.step import Lane
from aerie.probe.lane_log import LaneLog, StepTimes
from aerie.scheduler import Scheduler

WARM_UP = 8


@dataclass(frozen=True, slots=True)
class Steady:
    """Totals of `steps` decode steps of `rows` rows."""

    rows: int
    steps: int
    seconds: float
    committed: int
    verified: int
    """Verified nodes, roots included."""
    context: int
    """Tokens held by rows, summed over steps and rows."""
    busy_seconds: float
    host_seconds: float
    """Wall time without the wait for the lane."""
    phase_seconds: dict[str, float]

    @property
    def tokens_per_s(self) -> float:
        return self.committed / self.seconds

    @property
    def acceptance_length(self) -> float:
        return self.committed / (self.rows * self.steps)

    @property
    def idle_share(self) -> float:
        """Share of the wall time in which the lane had no work."""
        return max(0.0, 1 - self.busy_seconds / self.seconds)


GREEDY = SamplingParams(temperature=0)


def steady(
    lane: Lane,
    config: Config,
    *,
    rows: int,
    prompt: int,
    steps: int,
    sampling: SamplingParams = GREEDY,
    during: AbstractContextManager[Any] | None = None,
) -> Steady:
    """Runs rows of `prompt` random tokens each, which end only after the last step. `during` is entered for the
    measured steps alone.

    Raises ConfigError if they do not fit.
    """
    depth = (
        max((shape.depth for shape in config.spec.by_load), default=config.spec.depth) if lane.capacity.drafts else 0
    )
    fill = -(-rows * prompt // config.scheduler.prefill_chunk)  # steps in which the first rows decode already
    length = prompt + (steps + fill + 2 * WARM_UP) * (depth + 1)
    _check_room(lane, rows, length)
    log = LaneLog(lane)
    running = config.scheduler.model_copy(update={"max_running": rows})
    scheduler = Scheduler(log, config.model_copy(update={"scheduler": running}))
    _fill(scheduler, rows, prompt, replace(sampling, max_tokens=length - prompt, ignore_eos=True))
    gc.collect()
    gc.freeze()
    for _ in range(WARM_UP):  # after the pause, in which the device ended what it had: a step for nothing
        _iterate(scheduler)
    first, context = len(log.steps), 0
    with during or nullcontext():
        began = time.perf_counter()
        while len(log.steps) - first < steps:
            _iterate(scheduler)
            context += int(scheduler.rows.settled[scheduler.rows.decoding].sum())
        seconds = time.perf_counter() - began
    gc.unfreeze()
    measured = log.steps[first:]
    _empty(scheduler, rows)
    return _summed(rows, measured, seconds, context, nodes=_nodes(config, rows) if lane.capacity.drafts else 1)


def _summed(rows: int, measured: list[StepTimes], seconds: float, context: int, nodes: int) -> Steady:
    phases: dict[str, float] = {}
    for times in measured:
        for name, spent in times.phases.items():
            phases[name] = phases.get(name, 0.0) + spent
    return Steady(
        rows=rows,
        steps=len(measured),
        seconds=seconds,
        committed=sum(times.committed for times in measured),
        verified=nodes * rows * len(measured),
        context=context,
        busy_seconds=sum(phases.values()),
        host_seconds=seconds - sum(times.settled - times.waiting for times in measured),
        phase_seconds=phases,
    )


def _nodes(config: Config, rows: int) -> int:
    """Nodes that the config verifies per row with this many rows."""
    spec = config.spec
    if not spec.by_load:
        return spec.nodes
    return next((shape.nodes for shape in sorted(spec.by_load, key=lambda s: s.rows) if rows <= shape.rows), 1)


def _check_room(lane: Lane, rows: int, length: int) -> None:
    capacity = lane.capacity
    pages = rows * -(-(length + capacity.reserve) // capacity.page_size)
    if rows > capacity.rows or length > capacity.max_length or pages >= capacity.pages:
        raise ConfigError(
            f"{rows} rows of {length} tokens take {pages} pages; the lane has {capacity.rows} rows of at most "
            f"{capacity.max_length} tokens and {capacity.pages - 1} pages: measure fewer rows or steps, or raise "
            f"scheduler.max_running, model.max_length or engine.memory_share",
            param="scheduler.max_running",
        )


def _fill(scheduler: Scheduler, rows: int, prompt: int, sampling: SamplingParams) -> None:
    """Brings all rows through their prompts."""
    tokens = np.random.default_rng(1).integers(2, scheduler.ready().vocabulary, (rows, prompt))
    for row in range(rows):
        own = replace(sampling, seed=row)
        scheduler.submit(Generate(id=f"request-{row}", prompt=tokens[row].tolist(), sampling=own))
    while scheduler.rows.decoding.sum() < rows:
        _iterate(scheduler)


def _empty(scheduler: Scheduler, rows: int) -> None:
    from aerie.contracts.messages import Abort

    for row in range(rows):
        scheduler.submit(Abort(id=f"request-{row}"))
    while not scheduler.idle:
        _iterate(scheduler)


def _iterate(scheduler: Scheduler) -> None:
    """One iteration with everything that a scheduler process does except the socket."""
    replies = scheduler.iterate()
    for reply in replies:
        if isinstance(reply, Failed):
            raise AerieError(f"{reply.id} failed: {reply.message}", code=reply.code)
    if replies:
        wire.encode(Batch(messages=replies))

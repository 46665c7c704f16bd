"""Measures one cell on a running server: load, figures and provenance. Called by the sweep and its tuning."""

import asyncio
import math
from typing import Any

from aerie.bench.cells import Cell, Watch
from aerie.bench.config import Sweep, SweepError
from aerie.bench.counters import Counters
from aerie.bench.loads.client import Endpoint
from aerie.bench.loads.load import Size, closed_loop, open_loop
from aerie.bench.loads.workloads import find
from aerie.bench.machine import NOT_MEASURED, EnergyMeter
from aerie.bench.measured import Measured, Window, summarize
from aerie.bench.targets import Server


class NoFigures(Exception):
    """Why a cell has no figures."""


def measure(sweep: Sweep, cell: Cell, server: Server, watch: Watch) -> dict[str, Any]:
    """Figures, provenance and the server's own description. Restarts a server that has ended. Raises NoFigures."""
    try:
        if not server.alive:
            server.revive()
        before, meter = server.counters(), EnergyMeter()
        measured, window = asyncio.run(put_load(sweep, cell, server.endpoint(sweep.temperature), watch))
    except (OSError, SweepError) as error:
        raise NoFigures(f"the server does not answer: {error}") from None
    joules = meter.joules()
    figures = summarize(measured, window, {str(name): most for name, most in sweep.latency_targets.items()})
    if figures["failed"] and not server.answers:
        raise NoFigures(f"the server died under load: {figures['errors']}")
    if figures["failed"] == figures["requests"]:
        raise NoFigures(f"all requests failed: {figures['errors']}")
    figures |= _costs(sweep, cell, measured, joules, figures)
    figures |= _counted(before, server.counters(), figures)
    return figures | {
        "provenance": server.provenance(),
        "server": server.describe(),
        "caution": find(cell.workload).caution,
    }


async def put_load(sweep: Sweep, cell: Cell, at: Endpoint, watch: Watch) -> tuple[list[Measured], Window]:
    """Runs the cell's conversations under its load; seeds depend on the sweep and the repeat, not on the target."""
    seed = sweep.seed + 10_000 * cell.repeat
    places = int(cell.load) if cell.mode == "concurrency" else 1
    least = max(sweep.requests, sweep.rounds * places)
    warm_up = places if cell.mode == "concurrency" else math.ceil(least / 10)
    count = least + warm_up
    talks = find(cell.workload).endless(max_tokens=sweep.max_tokens, seed=seed)
    size = Size(warm_up, count, sweep.seconds)
    progress = watch(cell, count)
    if cell.mode == "concurrency":
        return await closed_loop(at, talks, concurrency=places, size=size, seed=seed, progress=progress)
    burstiness = sweep.load.burstiness
    return await open_loop(at, talks, rate=cell.load, burstiness=burstiness, size=size, seed=seed, progress=progress)


def _counted(before: Counters | str, after: Counters | str, figures: dict[str, Any]) -> dict[str, Any]:
    """Acceptance from /metrics, or why there is none; it fills in where the requests' usage lacks it."""
    if isinstance(before, str) or isinstance(after, str):
        return {"metrics": after if isinstance(after, str) else before}
    gained = after.since(before)
    if gained is None:
        return {"metrics": "nothing was drafted"}
    silent = figures["acceptance_length"] is None
    names = ("acceptance_length", "acceptance_per_position")
    return {"metrics": gained} | ({name: gained[name] for name in names} if silent else {})


def _costs(
    sweep: Sweep, cell: Cell, measured: list[Measured], joules: dict[str, float] | str, figures: dict[str, Any]
) -> dict[str, Any]:
    """Energy per output token over the whole cell, and the price of a million of them."""
    tokens = sum(one.tokens for one in measured)
    hour = sweep.target(cell.target).cost_per_hour
    rate = float(figures["output_tokens_per_s"])
    return {
        "joules": joules,
        "joules_per_token": NOT_MEASURED if isinstance(joules, str) or not tokens else sum(joules.values()) / tokens,
        "cost_per_million_tokens": hour / 3600 / rate * 1e6 if hour is not None and rate > 0 else NOT_MEASURED,
    }

"""Runs a sweep: starts targets, measures cells in turn, goes on after a kill, and outlives a server that dies."""

import asyncio
import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.cells import Cell, Results, planned
from bench.client import Endpoint
from bench.config import Sweep, SweepError
from bench.counters import Counters
from bench.load import Progress, closed_loop, open_loop
from bench.machine import NOT_MEASURED, EnergyMeter, provenance
from bench.measured import Measured, Window, summarize
from bench.targets import Server
from bench.workloads import find

Watch = Callable[[Cell, int], Progress]
"""Told of each cell and its conversations before it begins; returns who is told how many have ended."""


def run_sweep(sweep: Sweep, out: Path, watch: Watch, say: Callable[[str], None]) -> Results:
    """Measures what `out` does not hold yet. Raises SweepError for what cannot be measured at all."""
    for name in sweep.workloads:
        find(name)
    results = Results(out, sweep)
    left = [cell for cell in planned(sweep) if cell not in results.done()]
    for _, cells in groupby(left, key=lambda cell: None if sweep.together else (cell.repeat, cell.target)):
        _run_group(sweep, list(cells), results, watch, say)
    return results


def _run_group(sweep: Sweep, cells: list[Cell], results: Results, watch: Watch, say: Callable[[str], None]) -> None:
    """Cells whose targets run side by side. A target that cannot start fails its cells and no others."""
    with ExitStack() as running:
        servers: dict[str, Server] = {}
        for target in sweep.targets:
            if any(cell.target == target.name for cell in cells):
                try:
                    servers[target.name] = running.enter_context(Server(target, results.logs))
                except SweepError as error:
                    say(str(error))
                    _fail((cell for cell in cells if cell.target == target.name), results, str(error))
        for cell in cells:
            if cell.target in servers:
                _run_cell(sweep, cell, servers[cell.target], results, watch, say)


def _run_cell(
    sweep: Sweep, cell: Cell, server: Server, results: Results, watch: Watch, say: Callable[[str], None]
) -> None:
    try:
        if not server.alive:
            say(f"{cell.target} has ended; it is started again")
            server.revive()
        before, meter = server.counters(), EnergyMeter()
        measured, window = asyncio.run(measure(sweep, cell, server.endpoint(sweep.temperature), watch))
    except (OSError, SweepError) as error:
        say(f"{cell.target}: {error}")
        _fail([cell], results, f"the server does not answer: {error}")
        return
    joules = meter.joules()
    figures = summarize(measured, window, {str(name): most for name, most in sweep.latency_targets.items()})
    figures |= _costs(sweep, cell, measured, joules, figures)
    if figures["failed"] and not server.answers:
        reason = f"the server died under load: {figures['errors']}"
    elif figures["failed"] == figures["requests"]:
        reason = f"all requests failed: {figures['errors']}"
    else:
        figures |= _counted(before, server.counters(), figures)
        told = {"provenance": provenance(), "server": server.describe(), "caution": find(cell.workload).caution}
        results.add(cell, "ok", **figures, **told)
        return
    say(f"{cell.target}, {cell.workload}, {cell.mode} {cell.load:g}: {reason}")
    _fail([cell], results, reason)


def _counted(before: Counters | str, after: Counters | str, figures: dict[str, Any]) -> dict[str, Any]:
    """What /metrics says of acceptance, or why it says nothing; it stands in where the requests' usage is silent."""
    if isinstance(before, str) or isinstance(after, str):
        return {"metrics": after if isinstance(after, str) else before}
    gained = after.since(before)
    if gained is None:
        return {"metrics": "nothing was drafted"}
    silent = figures["acceptance_length"] is None
    names = ("acceptance_length", "acceptance_per_position")
    return {"metrics": gained} | ({name: gained[name] for name in names} if silent else {})


async def measure(sweep: Sweep, cell: Cell, at: Endpoint, watch: Watch) -> tuple[list[Measured], Window]:
    """The cell's conversations under its load; seeds depend on the sweep and the repeat, not on the target."""
    seed = sweep.seed + 10_000 * cell.repeat
    places = int(cell.load) if cell.mode == "concurrency" else 1
    least = max(sweep.requests, sweep.rounds * places)
    warm_up = places if cell.mode == "concurrency" else math.ceil(least / 10)
    count = least + warm_up
    talks = find(cell.workload).conversations(count, max_tokens=sweep.max_tokens, seed=seed)
    progress = watch(cell, count)
    if cell.mode == "concurrency":
        return await closed_loop(at, talks, concurrency=places, warm_up=warm_up, seed=seed, progress=progress)
    burstiness = sweep.load.burstiness
    return await open_loop(
        at, talks, rate=cell.load, burstiness=burstiness, warm_up=warm_up, seed=seed, progress=progress
    )


def _costs(
    sweep: Sweep, cell: Cell, measured: list[Measured], joules: dict[str, float] | str, figures: dict[str, Any]
) -> dict[str, Any]:
    """Energy by output token over the whole cell, and the price of a million of them."""
    tokens = sum(one.tokens for one in measured)
    target = next(target for target in sweep.targets if target.name == cell.target)
    rate = float(figures["output_tokens_per_s"])
    priced = target.cost_per_hour is not None and rate > 0
    return {
        "joules": joules,
        "joules_per_token": NOT_MEASURED if isinstance(joules, str) or not tokens else sum(joules.values()) / tokens,
        "cost_per_million_tokens": (target.cost_per_hour or 0) / 3600 / rate * 1e6 if priced else NOT_MEASURED,
    }


def _fail(cells: Iterable[Cell], results: Results, reason: str) -> None:
    for cell in cells:
        results.add(cell, "failed", reason=reason, provenance=provenance())

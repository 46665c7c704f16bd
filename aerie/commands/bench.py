"""`aerie bench ...`: load tests over HTTP, of Aerie and of any other server with OpenAI's API."""

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aerie.commands.lists import numbers
from aerie.contracts.errors import AerieError
from aerie.contracts.places import find

if TYPE_CHECKING:
    from aerie.bench.cells import Cell
    from aerie.bench.config import Sweep

benches = typer.Typer(no_args_is_help=True, help="Load tests over HTTP, with reports and pictures.")

_PIPED_WIDTH = 200
"""Width of tables outside a terminal: wide enough to cut nothing off."""

Out = Annotated[Path, typer.Option("--out", help="Folder of the results; a sweep goes on with what it holds")]


@benches.command("sweep")
def sweep_command(
    configs: Annotated[list[Path], typer.Argument(help="Files of configs/sweep/")],
    out: Out = Path("build/sweep"),
    only: Annotated[
        list[str] | None, typer.Option(help="A target by its name; may be repeated. All by default")
    ] = None,
) -> None:
    """Measures every cell that the folder does not hold yet, and writes the report; each of several has its own."""
    from aerie.bench.config import SweepError, load_sweep

    try:
        sweeps = [load_sweep(find(str(path))) for path in configs]
        for path, sweep in zip(configs, sweeps, strict=True):
            _run(sweep, out / path.stem if len(configs) > 1 else out, only or [])
    except SweepError as error:
        raise AerieError(str(error)) from None


@benches.command("run")
def run_command(
    url: Annotated[str, typer.Option(help="A running server, as host:port or as a URL")] = "http://127.0.0.1:8000",
    workload: Annotated[str, typer.Option(help="A workload by name, or FILE.jsonl of messages")] = "demo",
    concurrency: Annotated[str, typer.Option(help="Requests at once, comma-separated")] = "1,4,16",
    rate: Annotated[str, typer.Option(help="Requests a second instead, comma-separated")] = "",
    burstiness: Annotated[float, typer.Option(min=0.01, help="Of --rate: 1 is Poisson, less is bursty")] = 1.0,
    requests: Annotated[int, typer.Option(min=2, help="Of each cell at least")] = 32,
    repeats: Annotated[int, typer.Option(min=1, help="More than one gives intervals")] = 1,
    max_tokens: Annotated[int, typer.Option(min=1)] = 128,
    temperature: Annotated[float, typer.Option(min=0)] = 0.0,
    fields: Annotated[str, typer.Option(help='More of every request, as JSON: {"ignore_eos": true}')] = "{}",
    seed: Annotated[int, typer.Option(help="Of prompts, arrivals and answers")] = 0,
    model: Annotated[str | None, typer.Option(help="The server's first by default")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="AERIE_API_KEY")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the results; a new one under build/bench by default")
    ] = None,
) -> None:
    """Looks whether one running server answers, puts load on it, shows what it measured and writes a report."""
    from aerie.bench.config import SweepError, parse_sweep
    from aerie.bench.look import look_at
    from aerie.bench.sweep import check

    load = {"rate": numbers(rate), "burstiness": burstiness} if rate else {"concurrency": numbers(concurrency)}
    target = {"name": "server", "url": url, "model": model, "api_key": api_key, "fields": _object(fields)}
    data = {"targets": [target], "workloads": [workload], "load": load, "requests": requests, "repeats": repeats}
    data |= {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    try:
        sweep = parse_sweep(data, "the options")
        check(sweep, ())
        look_at(sweep.targets[0], temperature)
        _run(sweep, out or _new_folder(Path("build/bench")))
    except SweepError as error:
        raise AerieError(str(error)) from None


@benches.command("fuzz")
def fuzz_command(
    kind: Annotated[str, typer.Argument(help="What is hostile in the requests: schemas or tools")],
    command: Annotated[str | None, typer.Option(help="Starts the server, on {port}; the demo by default")] = None,
    requests: Annotated[int, typer.Option(min=10)] = 10_000,
    seed: Annotated[int, typer.Option(help="Of the requests")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write what came of them here")] = None,
) -> None:
    """Sends hostile requests to a server of its own: is each answered or refused by field, does the server live, does
    its memory stay bounded?
    """
    from aerie.bench.config import SweepError
    from aerie.bench.fuzz import fuzz_server

    demo = (
        f"{sys.executable} -m aerie serve configs/serve/demo.yaml server.port={{port}} scheduler.long_prefill_chunk=512"
    )
    try:
        outcome, origin = fuzz_server(kind, command or demo, requests, seed, Path("build/fuzz"))
    except SweepError as error:
        raise AerieError(str(error)) from None
    if json_file is not None:
        cell = {"kind": kind, "seed": seed, **asdict(outcome), "params": dict(outcome.params)}
        json_file.write_text(json.dumps({"cells": [cell], "provenance": origin}) + "\n")
    for fault in outcome.faults:
        typer.echo(fault, err=True)
    mib = outcome.resident_mib
    typer.echo(
        f"{outcome.requests} requests: {outcome.answered} answered, {outcome.refused} refused by field, "
        f"{outcome.faulty} faults; memory " + (f"{mib[0]:.0f} MiB, at most {max(mib):.0f}" if mib else "not seen")
    )
    if not outcome.good:
        raise typer.Exit(1)


@benches.command("report")
def report_command(folder: Annotated[Path, typer.Argument(help="The folder of a sweep")]) -> None:
    """Shows the cells of a folder, and writes report.md, report.html and the pictures anew."""
    from aerie.bench.config import SweepError

    try:
        _report(folder)
    except SweepError as error:
        raise AerieError(str(error)) from None


def _run(sweep: "Sweep", out: Path, only: Collection[str] = ()) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from aerie.bench.cells import Results, read_cells
    from aerie.bench.sweep import check, run_sweep, work_left

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    check(sweep, only)
    trials, cells = work_left(sweep, Results(out, sweep), only)
    with Progress(*columns, console=console) as bars:
        whole = bars.add_task("sweep", total=len(trials) + len(cells))
        own = bars.add_task("", total=1, visible=False)

        def watch(cell: "Cell", conversations: int) -> Callable[[int], None]:
            name = f"{cell.target}, {cell.workload}, {cell.mode} {cell.load:g}"
            bars.advance(whole)
            bars.reset(own, total=conversations, description=name, visible=True)
            return lambda ended: bars.update(own, completed=ended)

        run_sweep(sweep, out, watch, lambda text: console.print(text, style="red", markup=False), only)
    _report(out)
    if all("reason" in line for line in read_cells(out)):
        raise AerieError("no cell was measured; the lines above and the report say why")


def _new_folder(parent: Path) -> Path:
    """Makes a folder named by the time; a second one within the same second gets a number."""
    began = time.strftime("%Y-%m-%d-%H%M%S")
    for name in itertools.chain([began], (f"{began}-{count}" for count in itertools.count(2))):
        with contextlib.suppress(FileExistsError):
            (parent / name).mkdir(parents=True)
            return parent / name
    raise AssertionError("names do not end")


def _report(folder: Path) -> None:
    """Writes the report, shows its tables and names its files."""
    from rich.console import Console
    from rich.table import Table

    from aerie.bench.reports.report import tables, write_report

    written = write_report(folder)
    for title, part in tables(folder):
        shown = Table(title=title, title_justify="left", header_style="bold")
        for place, head in enumerate(part.head):
            shown.add_column(head, justify="left" if place == 1 else "right")
        for line in part.lines:
            shown.add_row(*line)
        Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH).print(shown)
    for path in written:
        typer.echo(path)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise AerieError(f'{text!r} is not a JSON object; write it as in {{"ignore_eos": true}}')
    return found

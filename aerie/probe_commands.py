"""`aerie probe ...`: gives the probes a config, prompts and lanes, shows their cells, and writes them as JSON."""

from pathlib import Path
from typing import Annotated

import typer

from aerie.lane import make_lane
from aerie.resolve import resolve_config, with_local_model
from contracts.config import Config
from contracts.labels import labels

probes = typer.Typer(no_args_is_help=True, help="Measurements inside the process; each prints a table and writes JSON.")

Target = Annotated[str, typer.Argument(help="A config file, a model folder, or a hub id ORG/MODEL")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Settings as section.key=value, as in spec.depth=5")]
Json = Annotated[Path | None, typer.Option("--json", help="Write cells and provenance here")]
Prompts = Annotated[int, typer.Option(min=1, help="Held-out prompts to ask")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens of each answer at most")]
Quick = Annotated[bool, typer.Option("--quick", help="A few short answers: shows that it works, measures little")]
Shape = Annotated[str | None, typer.Option(help="depth,topk,nodes in place of the config's, as in 5,4,16")]

_QUICK_PROMPTS, _QUICK_TOKENS = 8, 12


@probes.command("compare")
def compare_command(
    target: Target,
    overrides: Overrides = None,
    json: Json = None,
    prompts: Prompts = 64,
    max_tokens: MaxTokens = 40,
    quick: Quick = False,
    chain: Shape = None,
    tree: Shape = None,
    concurrency: Annotated[str, typer.Option(help="Requests at once, comma-separated")] = "1,8,64",
    temperature: Annotated[str, typer.Option(help="Temperatures, comma-separated")] = "0,0.8,1.2",
    dtype: Annotated[str, typer.Option(help="Dtypes, comma-separated")] = "float32,bfloat16",
) -> None:
    """Speculation off, as chains and as trees: the same tokens, and how much faster."""
    from probe.compare import Grid, compare
    from probe.shapes import parse_shape

    config = _config(target, overrides)
    count, most = (_QUICK_PROMPTS, _QUICK_TOKENS) if quick else (prompts, max_tokens)
    grid = Grid(
        temperatures=[float(value) for value in temperature.split(",")],
        concurrencies=[int(value) for value in concurrency.split(",")],
        dtypes=dtype.split(","),
        max_tokens=most,
        chain=None if chain is None else parse_shape(chain),
        tree=None if tree is None else parse_shape(tree),
    )
    cells = compare(config, _prompts(config, count), make_lane, grid, say=_say)
    columns = {"dtype": "s", "temperature": "g", "concurrency": "d", "overlap": "s", "mode": "s", "shape": "s"}
    columns |= {"tokens_per_s": ".0f", "speedup": ".2f", "acceptance_length": ".2f", "acceptance_per_position": ".2f"}
    columns |= {"identical": ".3f", "excused": "d", "unexplained": "d", "idle_share": ".2f", "ttft": ".3f"}
    _end("Speculation on and off", cells, columns, config, json)


@probes.command("draft-temperature")
def draft_temperature_command(
    target: Target,
    overrides: Overrides = None,
    json: Json = None,
    prompts: Prompts = 64,
    max_tokens: MaxTokens = 64,
    quick: Quick = False,
) -> None:
    """Acceptance by `a`, the trust in the head's distribution; `inf` drafts without noise."""
    from probe.draft_temperature import measure_draft_temperatures

    config = _inline(_config(target, overrides))
    count, most = (_QUICK_PROMPTS, _QUICK_TOKENS) if quick else (prompts, max_tokens)
    cells = measure_draft_temperatures(config, _prompts(config, count), make_lane, max_tokens=most, say=_say)
    columns = {"mode": "s", "shape": "s", "temperature": "g", "a": "g", "acceptance_length": ".3f"}
    columns |= {"over_target_only": ".3f", "acceptance_per_position": ".2f"}
    _end("Draft temperature", cells, columns, config, json)


@probes.command("trees")
def trees_command(
    target: Target,
    overrides: Overrides = None,
    json: Json = None,
    prompts: Prompts = 64,
    max_tokens: MaxTokens = 64,
    quick: Quick = False,
    depth: Annotated[int, typer.Option(min=1, help="The cap of depth for both")] = 8,
    topk: Annotated[int, typer.Option(min=2, max=16, help="Children of a tree's node")] = 4,
) -> None:
    """Trees against chains with the same nodes and cap of depth."""
    from probe.trees import measure_trees

    config = _inline(_config(target, overrides))
    count, most = (_QUICK_PROMPTS, _QUICK_TOKENS) if quick else (prompts, max_tokens)
    cells = measure_trees(config, _prompts(config, count), make_lane, depth=depth, topk=topk, max_tokens=most)
    columns = {"nodes": "d", "temperature": "g", "depth": "d", "chain": ".3f", "tree": ".3f", "tree_over_chain": ".3f"}
    _end("Acceptance length of trees and chains", cells, columns, config, json)


@probes.command("tune")
def tune_command(
    target: Target,
    overrides: Overrides = None,
    json: Json = None,
    prompts: Prompts = 64,
    max_tokens: MaxTokens = 48,
    quick: Quick = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure only; leave the config file as it is")] = False,
) -> None:
    """Measures shapes at 1 to 64 running rows and writes the fastest into the config file as spec.by_load."""
    from probe.config_file import write_by_load
    from probe.tune import CHAINS, LOADS, TREES, tune

    config = _config(target, overrides)
    count, most = (_QUICK_PROMPTS, _QUICK_TOKENS) if quick else (prompts, max_tokens)
    loads, shapes = (LOADS[:3:2], (CHAINS[1], TREES[1])) if quick else (LOADS, (*CHAINS, *TREES))
    asked = _prompts(config, count)
    cells, table = tune(config, asked, make_lane, loads=loads, shapes=shapes, max_tokens=most, say=_say)
    columns = {"rows": "d", "shape": "s", "tokens_per_s": ".0f", "speedup": ".2f", "acceptance_length": ".2f"}
    _end("Shapes by load", cells, columns | {"chosen": "s"}, config, json, by_load=[e.model_dump() for e in table])
    for entry in table:
        print(f"up to {entry.rows} rows: depth {entry.depth}, topk {entry.topk}, nodes {entry.nodes}")
    if target.endswith((".yaml", ".yml")) and not dry_run:
        write_by_load(Path(target), table)
        print(f"spec.by_load of {target} is written")


@probes.command("trace")
def trace_command(
    target: Target,
    overrides: Overrides = None,
    json: Json = None,
    rows: Annotated[int, typer.Option(min=1, help="Requests at once")] = 8,
    steps: Annotated[int, typer.Option(min=2, help="Steps to show of each loop")] = 30,
    png: Annotated[Path, typer.Option(help="The picture")] = Path("build/trace.png"),
    perfetto: Annotated[Path, typer.Option(help="The file that Perfetto opens")] = Path("build/trace.json"),
) -> None:
    """Draws steps as a timeline of host and lane, overlapped and synchronous."""
    from probe.timeline import draw, write_trace
    from probe.trace import trace, trace_cells

    config = _config(target, overrides)
    windows = trace(config, _prompts(config, rows), make_lane, steps=steps)
    draw(png, windows, title=f"{config.model.served_name}: {steps} steps of {rows} requests")
    write_trace(perfetto, windows)
    columns = {"loop": "s", "steps": "d", "rows": "d", "step_ms": ".2f", "lane_ms": ".2f", "host_ms": ".2f"}
    columns |= {"wait_ms": ".2f", "idle_share": ".3f", "tokens_per_s": ".0f"}
    _end("Host and lane", trace_cells(windows), columns, config, json)
    print(f"{png} and {perfetto} are written")


@probes.command("long-prompts")
def long_prompts_command(
    target: Target,
    overrides: Overrides = None,
    json: Json = None,
    prompts: Prompts = 64,
    max_tokens: MaxTokens = 8,
    quick: Quick = False,
    length: Annotated[int | None, typer.Option(min=1, help="Tokens of a long prompt; all that fit by default")] = None,
) -> None:
    """Time to first token of short requests, alone and while a long prompt is read."""
    from probe.long_prompts import measure_long_prompts

    config = _config(target, overrides)
    requests = {"rounds": 1, "requests": _QUICK_PROMPTS} if quick else {}
    asked = _prompts(config, prompts)
    cells = measure_long_prompts(config, asked, make_lane, max_tokens=max_tokens, length=length, **requests)
    columns = {"load": "s", "long_prompt_tokens": "d", "long_prompts_read": "d", "requests": "d", "ttft_p50": ".4f"}
    columns |= {"ttft_p99": ".4f", "over_quiet": ".2f", "tokens_per_s": ".0f"}
    _end("Short requests beside long prompts", cells, columns, config, json)


@probes.command("baseline")
def baseline_command(
    target: Target,
    overrides: Overrides = None,
    json: Json = None,
    prompts: Prompts = 16,
    max_tokens: MaxTokens = 64,
    quick: Quick = False,
    threads: Annotated[str, typer.Option(help="Numbers of threads, comma-separated")] = "1,2,3",
) -> None:
    """Plain decoding against transformers' generate, one request at a time."""
    from probe.baseline import measure_baseline

    config = _config(target, overrides)
    rounds, count, most = (1, 2, _QUICK_TOKENS) if quick else (3, prompts, max_tokens)
    counts = [int(value) for value in threads.split(",")]
    asked = _prompts(config, count)
    cells = measure_baseline(config, asked, make_lane, threads=counts, rounds=rounds, max_tokens=most)
    columns = {"side": "s", "dtype": "s", "threads": "d", "tokens_per_s": ".0f", "best": "s"}
    columns |= {"over_transformers": ".2f", "identical": ".3f"}
    _end("Plain decoding and transformers", cells, columns, config, json)


@probes.command("overlap")
def overlap_command(
    json: Json = None,
    batches: Annotated[str, typer.Option(help="Batch sizes, comma-separated")] = "1,2,4,8,16,32,64,128,256",
    steps: Annotated[int, typer.Option(min=1, help="Steps of each cell")] = 200,
) -> None:
    """The scheduler on a simulated 8B model on an H100: does the device ever wait for the host?"""
    from probe.overlap import measure_overlap, table
    from probe.report import write_report

    cells = measure_overlap([int(value) for value in batches.split(",")], steps=steps)
    print(table(cells))
    if json is not None:
        write_report(json, cells, None)


def _config(target: str, overrides: list[str] | None) -> Config:
    return with_local_model(resolve_config(target, overrides or []))


def _inline(config: Config) -> Config:
    """Where acceptance alone is measured, a process for the lane would only take time to start."""
    return config.model_copy(update={"engine": config.engine.model_copy(update={"lane": "inline"})})


def _prompts(config: Config, count: int) -> list[list[int]]:
    from aerie.prompts import held_out_prompts

    return held_out_prompts(config, count)


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _end(
    title: str,
    cells: list[dict[str, object]],
    columns: dict[str, str],
    config: Config,
    json: Path | None,
    **extra: object,
) -> None:
    from probe.report import show, write_report

    show(". ".join((title, *labels(config).values())), cells, columns)
    if json is not None:
        write_report(json, cells, config, **extra)

"""`aerie probe ...`: gives the probes a config, prompts and lanes. These commands measure the gain from drafting; those
of `timing_probes` measure only time, those of `grammar_probes` answers that must match something.
"""

from pathlib import Path
from typing import Annotated

import typer

from aerie.bench.origin import FIXED
from aerie.commands.gpu import gpus
from aerie.commands.grammar_probes import structured
from aerie.commands.lists import integers, numbers, words
from aerie.commands.planner_probes import planners
from aerie.commands.probe_options import (
    QUICK_TOKENS,
    WHOLE,
    Json,
    Longest,
    MaxTokens,
    Mix,
    Overrides,
    Prompts,
    Quick,
    Shape,
    Target,
    asked_of,
    config_of,
    end,
    inline,
    prompts_of,
    say,
)
from aerie.commands.timing_probes import timings
from aerie.lane import make_lane

_DTYPES = ("float32", "bfloat16", "float16")

probes = typer.Typer(no_args_is_help=True, help="Measurements inside the process; each prints a table and writes JSON.")
probes.add_typer(timings)
probes.add_typer(structured)
probes.add_typer(planners)
probes.add_typer(gpus)


@probes.command("compare")
def compare_command(
    target: Target,
    overrides: Overrides = None,
    json: Json = None,
    prompts: Prompts = 64,
    max_tokens: Longest = None,
    quick: Quick = False,
    mix: Mix = None,
    chain: Shape = None,
    tree: Shape = None,
    concurrency: Annotated[str, typer.Option(help="Requests at once, comma-separated")] = "1,8,64",
    temperature: Annotated[str, typer.Option(help="Temperatures, comma-separated")] = "0,0.8,1.2",
    dtype: Annotated[str, typer.Option(help="Dtypes, comma-separated")] = "float32,bfloat16",
) -> None:
    """Speculation off, as chains and as trees: the same tokens, and how much faster."""
    from aerie.probe.compare import Grid, compare
    from aerie.probe.shapes import parse_shape

    config = config_of(target, overrides)
    asked, most = asked_of(config, prompts, max_tokens, mix, short=32, quick=quick)
    grid = Grid(
        temperatures=numbers(temperature),
        concurrencies=integers(concurrency),
        dtypes=words(dtype, _DTYPES),
        max_tokens=most,
        chain=None if chain is None else parse_shape(chain),
        tree=None if tree is None else parse_shape(tree),
    )
    cells = compare(config, asked, make_lane, grid, say=say)
    columns = {"dtype": "s", "temperature": "g", "concurrency": "d", "overlap": "s", "mode": "s", "shape": "s"}
    columns |= {"tokens_per_s": ".0f", "speedup": ".2f", "speedup_interval": ".2f", "acceptance_length": ".2f"}
    columns |= {"acceptance_interval": ".2f", "acceptance_per_position": ".2f"}
    columns |= {"identical": ".3f", "excused": "d", "unexplained": "d", "idle_share": ".2f", "ttft": ".3f"}
    end("Speculation on and off", cells, columns, config, json)


@probes.command("draft-temperature")
def draft_temperature_command(
    target: Target,
    overrides: Overrides = None,
    json: Json = None,
    prompts: Prompts = 64,
    max_tokens: Longest = None,
    quick: Quick = False,
    mix: Mix = None,
) -> None:
    """Acceptance by `a`, the trust in the head's distribution; `inf` drafts without noise."""
    from aerie.probe.draft_temperature import measure_draft_temperatures

    config = inline(config_of(target, overrides))
    asked, most = asked_of(config, prompts, max_tokens, mix, short=64, quick=quick)
    cells = measure_draft_temperatures(config, asked, make_lane, max_tokens=most, say=say)
    columns = {"mode": "s", "shape": "s", "temperature": "g", "a": "g", "acceptance_length": ".3f"}
    columns |= {"over_target_only": ".3f", "acceptance_per_position": ".2f"}
    end("Draft temperature", cells, columns, config, json, rooms=FIXED)


@probes.command("trees")
def trees_command(
    target: Target,
    overrides: Overrides = None,
    json: Json = None,
    prompts: Prompts = 64,
    max_tokens: Longest = None,
    quick: Quick = False,
    mix: Mix = None,
    depth: Annotated[int, typer.Option(min=1, help="The cap of depth for both")] = 8,
    topk: Annotated[int, typer.Option(min=2, max=16, help="Children of a tree's node")] = 4,
) -> None:
    """Trees against chains with the same nodes and cap of depth."""
    from aerie.probe.trees import measure_trees

    config = inline(config_of(target, overrides))
    asked, most = asked_of(config, prompts, max_tokens, mix, short=64, quick=quick)
    cells = measure_trees(config, asked, make_lane, depth=depth, topk=topk, max_tokens=most)
    columns = {"nodes": "d", "temperature": "g", "depth": "d", "chain": ".3f", "tree": ".3f", "tree_over_chain": ".3f"}
    end("Acceptance length of trees and chains", cells, columns, config, json, rooms=FIXED)


@probes.command("tasks")
def tasks_command(
    target: Target,
    overrides: Overrides = None,
    json: Json = None,
    prompts: Annotated[int, typer.Option(min=1, help="Held-out exercises of each task")] = 8,
    max_tokens: MaxTokens = WHOLE,
    quick: Quick = False,
    shapes: Annotated[str, typer.Option(help="depth,topk,nodes, separated by semicolons")] = "6,1,7;7,4,16",
) -> None:
    """Acceptance of answers to generated tasks: by task, temperature and place in the answer."""
    from aerie.commands.prompts import task_prompts
    from aerie.probe.shapes import parse_shape
    from aerie.probe.tasks import PLACES, measure_tasks

    config = inline(config_of(target, overrides))
    count, most = (1, QUICK_TOKENS) if quick else (prompts, max_tokens)
    asked = task_prompts(config, count)
    wanted = [parse_shape(text) for text in shapes.split(";")]
    cells = measure_tasks(config, asked, make_lane, shapes=wanted, max_tokens=most)
    columns = {"task": "s", "shape": "s", "temperature": "g", "answers": "d", "tokens": ".0f", "accepted": ".2f"}
    columns |= {f"{first}-{last or ''}": ".2f" for first, last in PLACES}
    end("Acceptance length by task", cells, columns, config, json, rooms=FIXED)


@probes.command("tune")
def tune_command(
    target: Target,
    overrides: Overrides = None,
    json: Json = None,
    prompts: Prompts = 64,
    max_tokens: Longest = None,
    quick: Quick = False,
    mix: Mix = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure only; leave the config file as it is")] = False,
) -> None:
    """Measures shapes at 1 to 64 running rows and writes the fastest into the config file as spec.by_load.

    A shape is taken only where it gains at least 10 % over plain decoding, and none larger than fewer rows take.
    """
    from aerie.probe.config_file import write_by_load
    from aerie.probe.tune import CHAINS, LOADS, MARGIN, TREES, tune

    config = config_of(target, overrides)
    asked, most = asked_of(config, prompts, max_tokens, mix, short=48, quick=quick)
    loads, shapes = (LOADS[:3:2], (CHAINS[1], TREES[1])) if quick else (LOADS, (*CHAINS, *TREES))
    cells, table = tune(config, asked, make_lane, loads=loads, shapes=shapes, max_tokens=most, say=say)
    columns = {"rows": "d", "shape": "s", "tokens_per_s": ".0f", "speedup": ".2f", "acceptance_length": ".2f"}
    end(
        "Shapes by load",
        cells,
        columns | {"chosen": "s"},
        config,
        json,
        by_load=[e.model_dump() for e in table],
        margin=MARGIN,
        rooms=FIXED,
    )
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
    from aerie.probe.timeline import draw, write_trace
    from aerie.probe.trace import trace, trace_cells

    config = config_of(target, overrides)
    windows = trace(config, prompts_of(config, rows), make_lane, steps=steps)
    draw(png, windows, title=f"{config.model.served_name}: {steps} steps of {rows} requests")
    write_trace(perfetto, windows)
    columns = {"loop": "s", "steps": "d", "rows": "d", "step_ms": ".2f", "lane_ms": ".2f", "host_ms": ".2f"}
    columns |= {"wait_ms": ".2f", "idle_share": ".3f", "tokens_per_s": ".0f"}
    end("Host and lane", trace_cells(windows), columns, config, json)
    print(f"{png} and {perfetto} are written")

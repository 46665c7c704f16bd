"""The commands of `aerie probe` about the planner: its grid and its drifting load, measured piece by piece."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from aerie.commands.lists import integers, numbers, words
from aerie.commands.probe_options import (
    QUICK_PROMPTS,
    QUICK_TOKENS,
    WHOLE,
    Json,
    Overrides,
    Quick,
    Resume,
    Target,
    config_of,
    end,
    inline,
    prompts_of,
    say,
)
from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.lane import make_lane

planners = typer.Typer()

LOADS = ("short", "long", "edits", "mixed", "short after long context", "long after long context")
_SHORT, _EARLIER = 32, 12
_PROMPTS = 64
_PHASES = "long 0 1; short 0.8 16; mixed 0+1.2 4; long 1.2 32; edits 0 2; short 0+0.8+1.2 8"

_CELL = {"load": "s", "temperature": "s", "rows": "d", "mode": "s", "tokens_per_s": ".0f", "over_off": ".3f"}
_CELL |= {"interval": ".3f", "cpu_over_off": ".3f", "cpu_interval": ".3f", "acceptance_length": ".2f"}
_CELL |= {"cpu_best": "s", "cpu_over_best": ".3f", "cpu_over_best_interval": ".3f", "answer_tokens": ".0f"}
_CELL |= {"identical": ".3f", "ttft_p99_over_off": ".2f", "alone": ".3f", "added_waits_interval": ".1f"}
_CELL |= {"decision_us": ".0f", "decision_us_p99": ".0f"}
_WORST = {"against": "s", "clock": "s", "load": "s", "temperature": "s", "rows": "d", "way": "s", "ratio": ".3f"}
_WORST |= {"added_waits": ".1f", "lower": ".3f", "upper": ".3f"}
"""Columns of the tables, with their formats: of cells, and of the worst ones."""

Chains = Annotated[str, typer.Option(help="Depths of fixed chains to measure too, comma-separated")]
RandomHead = Annotated[bool, typer.Option("--random-head", help="Measure a head of the same sizes with random weights")]


@planners.command("planner")
def planner_command(
    target: Target,
    overrides: Overrides = None,
    json: Json = None,
    quick: Quick = False,
    concurrency: Annotated[str, typer.Option(help="Requests at once, comma-separated")] = "1,2,4,8,16,32,64",
    temperature: Annotated[str, typer.Option(help="Temperatures, comma-separated; 0+1.2 alternates")] = "0,0.8,1.2",
    loads: Annotated[str, typer.Option(help="Kinds of requests, comma-separated: " + "; ".join(LOADS))] = "short,long",
    chains: Chains = "",
    measured: Annotated[float, typer.Option(min=0.01, help="The most CPU seconds of each mode in each cell")] = 3.0,
    warm: Annotated[int, typer.Option(min=0, help="Plain steps before those")] = 100,
    narrow: Annotated[
        float, typer.Option(min=0, help="A cell ends once its intervals are so narrow to each side")
    ] = 0.0,
    seconds: Annotated[float, typer.Option(min=0, help="Begin no cell after so many seconds")] = float("inf"),
    png: Annotated[Path | None, typer.Option(help="A picture of the ratios by CPU time")] = None,
    random_head: RandomHead = False,
    resume: Resume = False,
) -> None:
    """Shapes chosen live against no speculation and against fixed shapes."""
    from aerie.probe.pieces import Pieces, resumed
    from aerie.probe.planner import grid, key_of, measure_planner
    from aerie.probe.planner_cells import summary
    from aerie.probe.report import show

    config = config_of(target, overrides)
    pieces = resumed(json, config) if resume else Pieces(json, config)
    pieces.whole = lambda cells: {"summary": summary(cells)}
    places = grid(
        [_load(name, config, quick=quick) for name in words(loads, LOADS)],
        [tuple(numbers(part.replace("+", ","))) for part in temperature.split(",")],
        integers(concurrency),
    )
    with ExitStack() as stack:
        found = measure_planner(
            _with_random_head(config, stack) if random_head else config,
            make_lane,
            places,
            shapes=_chains(chains),
            measured=measured,
            warm=warm,
            narrow=narrow,
            known={key_of(cell) for cell in pieces.cells},
            seconds=seconds,
            say=say,
        )
        for more in found:
            pieces.add(more)
    cells = pieces.cells
    title = "The planner, no speculation and fixed shapes" + (", with a random head" if random_head else "")
    end(title, cells, _CELL, config, None)
    show("The worst cells", summary(cells), _WORST)
    if png is not None and cells:
        from aerie.probe.planner_plot import draw

        draw(png, cells, by="cpu_over_off")


@planners.command("drift")
def drift_command(
    target: Target,
    overrides: Overrides = None,
    json: Json = None,
    quick: Quick = False,
    phases: Annotated[str, typer.Option(help="Kind of requests, temperatures and requests at once, of each")] = _PHASES,
    chains: Chains = "1,3,6",
    measured: Annotated[float, typer.Option(min=0.01, help="CPU seconds of no speculation in each phase")] = 2.0,
    laps: Annotated[int, typer.Option(min=1, help="Times that all phases are gone through, by all pieces")] = 4,
    seconds: Annotated[float, typer.Option(min=0, help="Begin no lap after so many seconds")] = float("inf"),
    resume: Resume = False,
) -> None:
    """The planner against every fixed shape over a load that changes, and how many steps it takes to follow."""
    import time

    from aerie.probe.drift import measure_drift, totals
    from aerie.probe.pieces import Pieces, resumed
    from aerie.probe.planner import Place
    from aerie.probe.report import show

    ends = time.monotonic() + seconds
    config = config_of(target, overrides)
    pieces = resumed(json, config) if resume else Pieces(json, config)
    pieces.whole = lambda cells: {"totals": totals(cells)}
    places = []
    for phase in phases.split(";"):
        try:
            name, temperatures, rows = phase.rsplit(maxsplit=2)
        except ValueError:
            raise ConfigError(
                f"{phase!r} of --phases is invalid; write kind, temperatures and requests, as in long 0+1.2 8"
            ) from None
        load = _load(words(name.strip(), LOADS)[0], config, quick=quick)
        places.append(Place(load, tuple(numbers(temperatures.replace("+", ","))), integers(rows)[0]))
    for lap in range(laps):
        if any(cell["lap"] == lap for cell in pieces.cells):
            continue
        if time.monotonic() > ends:
            break
        pieces.add(
            measure_drift(config, make_lane, places, shapes=_chains(chains), measured=measured, lap=lap, say=say)
        )
    columns = {"mode": "s", "laps": "d", "over_off": ".3f", "interval": ".3f", "cpu_over_off": ".3f"}
    columns |= {"cpu_interval": ".3f", "planner_over": ".3f", "planner_interval": ".3f", "cpu_planner_over": ".3f"}
    columns |= {"cpu_planner_interval": ".3f", "recovery_steps": "d"}
    whole = totals(pieces.cells) if pieces.cells else []
    show("The planner and fixed shapes over a load that changes", whole, columns)


@planners.command("replay")
def replay_command(
    target: Target,
    overrides: Overrides = None,
    json: Json = None,
    quick: Quick = False,
    prompts: Annotated[int, typer.Option(min=1, help="Requests to record")] = 96,
    depth: Annotated[int, typer.Option(min=1, help="Depth of the recorded drafts")] = 6,
    chains: Annotated[str, typer.Option(help="Depths of fixed chains, comma-separated")] = "1,3,6",
    trees: Annotated[str, typer.Option(help="Fixed trees, each depth,topk,nodes, separated by semicolons")] = "",
    concurrency: Annotated[str, typer.Option(help="Requests at once, comma-separated")] = "1,4,16,64",
    temperature: Annotated[str, typer.Option(help="Temperatures, which alternate")] = "0,0.8,1.2",
) -> None:
    """Records answers and all their drafts once, then simulates every policy: steady loads and arrivals, on this
    machine's costs and on the roofline of an 8B model on an H100 and an H200.
    """
    from aerie.commands.prompts import long_answers
    from aerie.probe.drive import ask
    from aerie.probe.recording import record
    from aerie.probe.replays import measure_replays
    from aerie.probe.shapes import parse_shape
    from aerie.probe.simulation import Policy

    config = inline(config_of(target, overrides))
    count, most = (QUICK_PROMPTS, QUICK_TOKENS) if quick else (prompts, WHOLE)
    mix = [*prompts_of(config, count - count // 2), *long_answers(config, count // 2)]
    asked = ask(mix, numbers(temperature), max_tokens=most)
    shapes = [parse_shape(text) for text in trees.split(";") if text]
    recordings = record(config, asked, make_lane, depth=depth, trees=shapes)
    statics: list[Policy] = [*integers(chains), *shapes]
    loads = [load for load in integers(concurrency) if load <= count or not quick]
    cells = measure_replays(config, recordings, make_lane, statics=statics, depth=depth, loads=loads, say=say)
    columns = {"machine": "s", "arrivals": "s", "rows": "d", "policy": "s", "tokens_per_s": ".0f", "over_off": ".3f"}
    columns |= {"over_best_static": ".3f", "latency_over_off": ".3f", "drafting": ".2f", "recovery_steps": "d"}
    columns |= {"replayed_over_real": ".3f"}
    end("Replayed answers under every policy", cells, columns, config, json)


def _chains(depths: str) -> list[Any]:
    from aerie.contracts.shape import DraftShape

    return [DraftShape(depth, 1, depth + 1) for depth in (integers(depths) if depths else ())]


def _with_random_head(config: Config, stack: ExitStack) -> Config:
    from aerie.probe.random_head import random_head

    if config.spec.head is None:
        raise ConfigError("--random-head needs spec.head, whose sizes it takes", param="spec.head")
    folder = Path(stack.enter_context(TemporaryDirectory()))
    random_head(Path(config.spec.head), folder)
    return config.model_copy(update={"spec": config.spec.model_copy(update={"head": str(folder)})})


def _load(name: str, config: Config, *, quick: bool) -> Any:
    """The requests of a kind: held-out exercises, those of `long` with answers of 200 tokens and more."""
    from aerie.commands.prompts import conversations, long_answers, repetitions
    from aerie.probe.planner import Load

    count = QUICK_PROMPTS if quick else _PROMPTS
    most, short = (QUICK_TOKENS, QUICK_TOKENS) if quick else (WHOLE, _SHORT)
    if name == "short":
        return Load(name, prompts_of(config, count), short)
    if name == "long":
        return Load(name, long_answers(config, count), most)
    if name == "edits":
        return Load(name, repetitions(config, count), most)
    if name == "mixed":
        halves = prompts_of(config, count // 2), repetitions(config, count // 2)
        return Load(name, [prompt for pair in zip(*halves, strict=True) for prompt in pair], most)
    long = name == "long after long context"
    earlier = 2 if quick else _EARLIER
    return Load(name, conversations(config, count, earlier=earlier, long_answers=long), most if long else short)

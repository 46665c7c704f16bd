"""The commands of `aerie probe` that measure time: short requests during long prompts, plain decoding, matrix products,
and the host's overhead beside a fast device.
"""

from dataclasses import replace
from typing import Annotated

import typer

from aerie.bench.origin import FIXED
from aerie.commands.lists import integers, words
from aerie.commands.probe_options import (
    QUICK_PROMPTS,
    QUICK_TOKENS,
    Json,
    MaxTokens,
    Overrides,
    Prompts,
    Quick,
    Resume,
    Target,
    config_of,
    end,
    prompts_of,
    say,
)
from aerie.lane import make_lane

timings = typer.Typer()

_PRODUCTS = (
    "engine/model/matrix.py",
    "engine/model/packing.py",
    "native/choice.py",
    "native/products.py",
    "native/src",
    "native/trials.py",
)
"""The code that `aerie probe kernels` measures."""


@timings.command("long-prompts")
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
    from aerie.probe.long_prompts import measure_long_prompts

    config = config_of(target, overrides)
    requests = {"rounds": 1, "requests": QUICK_PROMPTS} if quick else {}
    asked = prompts_of(config, prompts)
    cells = measure_long_prompts(config, asked, make_lane, max_tokens=max_tokens, length=length, **requests)
    columns = {"load": "s", "long_prompt_tokens": "d", "long_prompts_read": "d", "requests": "d", "ttft_p50": ".4f"}
    columns |= {"ttft_p99": ".4f", "over_quiet": ".2f", "tokens_per_s": ".0f"}
    end("Short requests beside long prompts", cells, columns, config, json)


@timings.command("baseline")
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
    from aerie.probe.baseline import measure_baseline

    config = config_of(target, overrides)
    rounds, count, most = (1, 2, QUICK_TOKENS) if quick else (3, prompts, max_tokens)
    counts = integers(threads)
    asked = prompts_of(config, count)
    cells = measure_baseline(config, asked, make_lane, threads=counts, rounds=rounds, max_tokens=most)
    columns = {"side": "s", "dtype": "s", "compiled": "s", "threads": "d", "tokens_per_s": ".0f", "best": "s"}
    columns |= {"over_transformers": ".2f", "identical": ".3f"}
    end("Plain decoding and transformers", cells, columns, config, json, rooms=FIXED)


@timings.command("kernels")
def kernels_command(
    target: Target,
    overrides: Overrides = None,
    json: Json = None,
    quick: Quick = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each multiplication")] = 1,
    march: Annotated[str, typer.Option(help="Instruction sets, comma-separated; by default this machine's best")] = "",
    seconds: Annotated[float, typer.Option(min=0, help="Begin no matrix after so many seconds")] = float("inf"),
    resume: Resume = False,
) -> None:
    """What multiplying by the target's matrices costs, in bf16 and in 8 bits, by instruction set, layout and tokens."""
    from aerie.engine.build import read_target
    from aerie.native.choice import served_in_bf16
    from aerie.native.march import LEVELS, runnable
    from aerie.native.trials import shapes_of
    from aerie.probe.kernels import measure_marches
    from aerie.probe.multiplications import Measure
    from aerie.probe.pieces import Pieces, resumed

    config = config_of(target, overrides)
    pieces = resumed(json, config, _PRODUCTS) if resume else Pieces(json, config, rooms=_PRODUCTS)
    model = read_target(config)
    measure = Measure(shapes_of(model), model.layers, threads=threads, rounds=served_in_bf16(config, model))
    if quick:
        measure = replace(measure, tokens=(1, 3), seconds=0.0)
    marches = words(march, list(LEVELS)) if march else [runnable()[0].name]
    for more in measure_marches(measure, marches, known=list(pieces.cells), seconds=seconds, say=say):
        pieces.add(more)
    columns = {"march": "s", "precision": "s", "matrix": "s", "out": "d", "in": "d", "tokens": "d", "layout": "s"}
    columns |= {"microseconds": ".0f", "gmacs": ".1f", "of_peak": ".2f", "of_bandwidth": ".2f", "over_torch": ".2f"}
    columns |= {"of_best_choice": ".2f"}
    end("Multiplications", pieces.cells, columns, config, json, rooms=_PRODUCTS, earlier=pieces.earlier)


@timings.command("overlap")
def overlap_command(
    json: Json = None,
    batches: Annotated[str, typer.Option(help="Batch sizes, comma-separated")] = "1,2,4,8,16,32,64,128,256",
    steps: Annotated[int, typer.Option(min=1, help="Steps of each cell")] = 200,
) -> None:
    """The scheduler on a simulated 8B model on an H100: does the device ever wait for the host?"""
    from aerie.probe.overlap import measure_overlap, table
    from aerie.probe.report import write_report

    cells = measure_overlap(integers(batches), steps=steps)
    print(table(cells))
    if json is not None:
        write_report(json, cells, None, ("contracts", "scheduler"))

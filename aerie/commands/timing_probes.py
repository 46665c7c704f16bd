"""The commands of `aerie probe` that measure time: short requests during long prompts, plain decoding, matrix products,
and the host's overhead beside a fast device.
"""

from pathlib import Path
from typing import Annotated

import typer

from aerie.commands.lists import integers
from aerie.commands.probe_options import (
    QUICK_PROMPTS,
    QUICK_TOKENS,
    Json,
    MaxTokens,
    Overrides,
    Prompts,
    Quick,
    Target,
    config_of,
    end,
    prompts_of,
)
from aerie.lane import make_lane

timings = typer.Typer()


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
    columns = {"side": "s", "dtype": "s", "threads": "d", "tokens_per_s": ".0f", "best": "s"}
    columns |= {"over_transformers": ".2f", "identical": ".3f"}
    end("Plain decoding and transformers", cells, columns, config, json)


@timings.command("kernels")
def kernels_command(
    target: Target,
    overrides: Overrides = None,
    json: Json = None,
    quick: Quick = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each multiplication")] = 1,
) -> None:
    """What multiplying by the target's matrices costs, by layout and by tokens."""
    import torch

    from aerie.engine.model.config import read_model_config
    from aerie.probe.kernels import measure_kernels
    from aerie.worker import choose_kernels

    config = config_of(target, overrides)
    kernels = choose_kernels(config, torch.device("cpu"))
    rounds, calls = (1, 2) if quick else (5, 48)
    model = read_model_config(Path(config.model.path))
    cells = measure_kernels(model, kernels, rounds=rounds, calls=calls, threads=threads)
    columns = {"matrix": "s", "out": "d", "in": "d", "tokens": "d", "layout": "s", "microseconds": ".0f"}
    end("Multiplications", cells, columns | {"over_columns": ".2f"}, config, json)


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
        write_report(json, cells, None)

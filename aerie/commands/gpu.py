"""`aerie probe gpu-check` and `aerie probe gpu-bench`: a GPU's correctness, then its speed; see docs/gpu.md."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aerie.commands.lists import integers, numbers, words
from aerie.commands.probe_options import Json, Overrides, Quick, config_of, end, say
from aerie.contracts.config import Config
from aerie.contracts.shape import DraftShape
from aerie.lane import make_lane

if TYPE_CHECKING:
    from aerie.probe.gpu_bench import Runs

gpus = typer.Typer()
logger = logging.getLogger("aerie.gpu")
Cell = dict[str, Any]
Target = Annotated[str, typer.Argument(help="A config file")]
_CHECKS = ("attention", "graphs", "speculation", "soak")
_PARTS = ("plain", "references", "sampling", "speculation", "attention", "kernels", "products", "profile")
_DRAWN = ("plain", "speculation")
"""Parts with pictures."""
_LOADS = "1,2,4,8,16,32,64"


@gpus.command("gpu-check")
def check_command(
    target: Target = "configs/serve/tiny-dummy.yaml",
    overrides: Overrides = None,
    json: Json = None,
    quick: Quick = False,
    only: Annotated[str, typer.Option(help="Checks, comma-separated")] = ",".join(_CHECKS),
) -> None:
    """Holds a GPU's attention, graphs and tokens against what they must be; ends with code 1 where they are not."""
    from aerie.probe.report import write_report

    config = config_of(target, overrides)
    cells: list[Cell] = []
    for name in words(only, _CHECKS):
        for cell in _tried(name, config, quick=quick):
            cells.append(cell)
            say(f"{name}: {cell['case']}: {cell['detail']}")
            if json is not None:
                write_report(json, cells, config)
    end("Checks", cells, {"check": "s", "case": "s", "passed": "s", "detail": "s"}, config, json)
    if any(cell["passed"] is False for cell in cells):
        raise typer.Exit(1)


def _tried(name: str, config: Config, *, quick: bool) -> Iterator[Cell]:
    """Yields the cells of a check; if an error of any library ends the check, the last cell reports it."""
    try:
        yield from _check(name, config, quick=quick)
    except Exception as error:
        logger.exception("the check %s broke off", name)
        yield {"check": name, "case": "broke off", "passed": False, "detail": _message(error)}


def _check(name: str, config: Config, *, quick: bool) -> Iterator[Cell]:
    from aerie.probe import gpu_check

    config = with_triton(config)
    exact = config.model_copy(update={"model": config.model.model_copy(update={"dtype": "float32"})})
    few: Any = {"requests": 4, "max_tokens": 8} if quick else {}
    if name == "attention":
        for dtype in ("float32", "bfloat16"):
            own = config.model_copy(update={"model": config.model.model_copy(update={"dtype": dtype})})
            sizes: Any = {"rows": (1, 2), "nodes": (1, 8), "lengths": (0, 1, 128)} if quick else {}
            yield from gpu_check.check_attention(own, **sizes)
    elif name == "graphs":
        yield from gpu_check.check_graphs(exact, make_lane, **few)
    elif name == "speculation":
        dtypes = ("float32",) if quick else ("float32", "bfloat16")
        yield from gpu_check.check_speculation(
            with_settings(config, "engine", edit_slots=0), make_lane, dtypes=dtypes, **few
        )
    else:
        yield from gpu_check.check_soak(exact, make_lane, requests=12 if quick else 200)


@gpus.command("gpu-bench")
def bench_command(
    target: Target = "configs/serve/llama-3.1-8b-dummy.yaml",
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Folder of the results")] = Path("bench/results/gpu"),
    quick: Quick = False,
    only: Annotated[str, typer.Option(help="Parts, comma-separated")] = ",".join(_PARTS),
    batches: Annotated[str, typer.Option(help="Rows of plain decoding")] = _LOADS + ",128,256",
    loads: Annotated[str, typer.Option(help="Rows of speculation")] = _LOADS,
    acceptance: Annotated[str, typer.Option(help="Simulated acceptance, comma-separated")] = "3,4.5",
    shapes: Annotated[
        str, typer.Option(help="Drafts measured: depth,topk,nodes, with semicolons between")
    ] = "3,1,4;6,1,7;5,4,16;6,8,32",
    few: Annotated[str, typer.Option(help="Rows of the parts references, sampling and profile")] = "1,64",
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of context to begin with")] = 1000,
    steps: Annotated[int, typer.Option(min=2, help="Steps of each cell")] = 100,
) -> None:
    """Plain and speculative decoding, attention and kernels alone, on a shape with random weights.

    Where a part breaks off, what it measured is kept, the others go on, and the code is 1.
    """
    from aerie.probe.gpu_bench import Runs

    config = config_of(target, overrides)
    if quick:
        batches, loads, acceptance, shapes, few, prompt, steps = "1,2", "1,2", "2", "3,1,4;2,2,4", "1,2", 20, 4
    drafts = _Drafts(integers(loads), numbers(acceptance), [DraftShape(*integers(each)) for each in shapes.split(";")])
    runs = Runs(integers(batches), prompt, steps, say=say)
    failed = []
    for name in words(only, _PARTS):
        cells = _part(name, config, runs, integers(few), drafts, quick=quick)
        if not _written(name, cells, config, out):
            failed.append(name)
    if failed:
        say(f"broke off: {', '.join(failed)}; what was measured before is under {out}")
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Drafts:
    loads: list[int]
    acceptances: list[float]
    shapes: list[DraftShape]


def _part(name: str, config: Config, runs: "Runs", few: list[int], drafts: _Drafts, *, quick: bool) -> Iterator[Cell]:
    from aerie.probe import gpu_bench
    from aerie.probe.fused import measure_fused
    from aerie.probe.gpu_profile import measure_profile
    from aerie.probe.products import measure_products

    served = with_triton(config)
    plain = with_settings(served, "spec", head="none", simulate_acceptance=None)
    simulated = with_settings(served, "spec", simulate_acceptance=drafts.acceptances[0])
    some = replace(runs, batches=few, overlaps=(True,))
    if name == "plain":
        yield from gpu_bench.measure_plain(served, make_lane, runs)
    elif name == "references":
        yield from gpu_bench.measure_plain(with_settings(config, "engine", kernels="torch"), make_lane, some)
    elif name == "sampling":
        kinds = replace(some, kinds=("sampled", "filtered"))
        yield from gpu_bench.measure_plain(served, make_lane, kinds)
        acceptances, shapes = drafts.acceptances[:1], drafts.shapes[:1]
        yield from gpu_bench.measure_speculation(served, make_lane, kinds, acceptances=acceptances, shapes=shapes)
    elif name == "speculation":
        loads = replace(runs, batches=drafts.loads, overlaps=(True,))
        acceptances, shapes = drafts.acceptances, drafts.shapes
        yield from gpu_bench.measure_speculation(served, make_lane, loads, acceptances=acceptances, shapes=shapes)
    elif name == "attention":
        sizes: Any = {"rows": (1,), "nodes": (1, 8), "lengths": (64,), "repeats": 3} if quick else {}
        yield from gpu_bench.measure_attention(config, say=say, **sizes)
    elif name == "kernels":
        cases: Any = {"rows": (2,), "repeats": 1} if quick else {}
        yield from measure_fused(config, say=say, **cases)
    elif name == "products":
        counts: Any = {"tokens": (1, 4), "repeats": 2} if quick else {}
        yield from measure_products(config, say=say, **counts)
    else:
        for own in (plain, simulated):
            yield from measure_profile(own, make_lane, batches=few, prompt=runs.prompt, steps=min(runs.steps, 20))


def with_triton(config: Config) -> Config:
    """On a GPU, `engine.kernels: auto` as `triton`: what is to be measured, before any measurement has chosen it."""
    from aerie.engine.device import resolve_device

    on_gpu = resolve_device(config).type == "cuda"
    return with_settings(config, "engine", kernels="triton") if on_gpu and config.engine.kernels == "auto" else config


def with_settings(config: Config, section: str, **settings: Any) -> Config:
    return config.model_copy(update={section: getattr(config, section).model_copy(update=settings)})


def _written(name: str, measured: Iterator[Cell], config: Config, out: Path) -> bool:
    """Returns whether a whole part could be measured. Writes its file cell by cell, so that a stop loses nothing."""
    from aerie.probe.gpu_plots import draw
    from aerie.probe.report import write_report

    cells: list[Cell] = []
    extra: dict[str, str] = {}
    try:
        for cell in measured:
            cells.append(cell)
            write_report(out / f"{name}.json", cells, config)
    except Exception as error:
        logger.exception("the part %s broke off", name)
        extra["broke_off"] = _message(error)
    end(name, cells, _columns(name), config, out / f"{name}.json", **extra)
    if cells and name in _DRAWN:
        draw(out / f"{name}.png", cells)
    return not extra


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _columns(name: str) -> dict[str, str]:
    if name == "attention":
        return {"backend": "s", "rows": "d", "nodes": "d", "length": "d", "microseconds": ".1f", "missing": "s"}
    if name == "kernels":
        columns = {
            "kernel": "s",
            "case": "s",
            "rows": "d",
            "reference_microseconds": ".1f",
            "kernel_microseconds": ".1f",
        }
        return columns | {"gain": ".2f", "largest_difference": ".1e"}
    if name == "products":
        columns = {"matrix": "s", "tokens": "d", "way": "s", "microseconds": ".1f"}
        return columns | {"bandwidth_share": ".3f", "failed": "s"}
    if name == "profile":
        columns = {"step": "s", "batch": "d", "kernel": "s", "times_per_step": ".1f", "microseconds_per_step": ".1f"}
        return columns | {"share": ".3f"}
    columns = {"batch": "d", "sampling": "s", "overlap": "s", "tokens_per_s": ".0f", "step_ms": ".2f"}
    columns |= {"host_ms_per_step": ".3f", "idle_share": ".3f", "e_sys": ".3f", "e_sys_measured": ".3f"}
    columns["acceptance_length"] = ".2f"
    drafted = {"shape": "s", "simulated_acceptance": "g"} if name in ("sampling", "speculation") else {}
    return drafted | columns

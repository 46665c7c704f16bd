"""`python -m aerie.experiments [NAMES] [SETTINGS]`: the experiments of configs/train/experiments/, in the real engine.

Has the proxy's target answer exercises, trains every arm of every experiment with every seed on its answers, and writes
bench/results/NAME.json and NAME.png after each. It can be stopped at any time and resumes where it was.
"""

import itertools
import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from aerie.contracts.config import Config
from aerie.contracts.errors import AerieError
from aerie.contracts.shape import DraftShape
from aerie.contracts.step import Lane
from aerie.lane import make_lane
from aerie.probe.drive import Run, ask, drive, joined
from aerie.probe.paired import Ratio, ratio, work
from aerie.probe.shapes import for_lane, with_shape
from aerie.train.experiments.config import Experiment, Speed, load_experiment
from aerie.train.pipeline.config import PipelineConfig, load_pipeline
from aerie.train_engine import measure_head, served_pair, served_target

CONFIGS = Path("configs/train/experiments")
PROXY = "proxy.yaml"
RESULTS = Path("bench/results")
PLAIN = 0
"""The depth of a cell of plain decoding."""
_WARM_UP_TOKENS = 8

Mode = tuple[Lane, Config]
"""What answers: a lane, and the config of its scheduler."""

app = typer.Typer(add_completion=False, help="Train and measure heads on the proxy pair.")


@app.command()
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Experiments to run, all by default; settings of the proxy as section.key=value."),
    ] = None,
    configs: Annotated[Path, typer.Option(help="Folder of the configs.")] = CONFIGS,
    results: Annotated[Path, typer.Option(help="Folder of the results.")] = RESULTS,
    least_exact: Annotated[
        float, typer.Option(help="Share of held-out exercises that the target answers exactly, at least.")
    ] = 0.6,
) -> None:
    """Run experiments that have no results of their configs yet."""
    from aerie.bench.origin import FIXED
    from aerie.probe.report import provenance
    from aerie.train.experiments.lessons import exact_rates
    from aerie.train.experiments.plots import draw
    from aerie.train.experiments.table import run_experiment, write_results

    names, settings = [word for word in words or () if "=" not in word], [word for word in words or () if "=" in word]
    found = {path.stem: path for path in sorted(configs.glob("*.yaml")) if path.name != PROXY}
    if unknown := sorted(set(names) - set(found)):
        typer.echo(f"error: no experiment {', '.join(unknown)} in {configs}; there are {', '.join(found)}", err=True)
        raise typer.Exit(2)
    try:
        proxy = load_proxy(configs, settings)
        target = {"exact": exact_rates(proxy, least=least_exact)}
        for name in names or found:
            experiment, out = load_experiment(found[name]), results / f"{name}.json"
            made = described(proxy, experiment)
            if out.exists() and _made_from(json.loads(out.read_text(encoding="utf-8"))) == made:
                typer.echo(f"{out} is there; kept")
                continue
            table = run_experiment(laboratory(proxy), experiment)
            origin = provenance(None, (*FIXED, "train", CONFIGS.as_posix(), proxy.target))
            write_results(out, {**table, "target": target}, origin | {"made_from": made})
            draw(out.with_suffix(".png"), table, along=experiment.along, tasks=experiment.shown)
            typer.echo(f"{out} is written")
    except AerieError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


def load_proxy(configs: Path, settings: list[str]) -> PipelineConfig:
    """The proxy's pipeline, its work in a folder for the code that it depends on: heads and cells of other code are not
    taken.
    """
    from aerie.bench.origin import FIXED, WHEN

    proxy = load_pipeline(configs / PROXY, settings)
    rooms = [room for room in (*FIXED, "train") if room not in WHEN]
    return proxy.model_copy(update={"work": str(Path(proxy.work) / _code(rooms))})


def laboratory(proxy: PipelineConfig) -> Any:
    """What experiments on this proxy work with."""
    from aerie.bench.origin import FIXED
    from aerie.train.experiments.table import Laboratory
    from aerie.train.pipeline.order import Surroundings

    return Laboratory(proxy, Surroundings(served_target, measure_head), measure_speed, _code(FIXED))


def _code(rooms: Iterable[str]) -> str:
    """A name for the code of these rooms."""
    from aerie.bench.origin import digests
    from aerie.train.experiments.lessons import key_of

    return key_of(digests(rooms))


def described(proxy: PipelineConfig, experiment: Experiment) -> dict[str, Any]:
    """What results depend on: both configs, and the target's weights."""
    from aerie.contracts.provenance import weights_hash

    return {
        "proxy": proxy.model_dump(mode="json", exclude={"work"}),
        "experiment": experiment.model_dump(mode="json"),
        "target": weights_hash(Path(proxy.target)),
    }


def _made_from(results: dict[str, Any]) -> Any:
    return results["provenance"].get("made_from")


def measure_speed(
    config: PipelineConfig, speed: Speed, head: Path, prompts: dict[str, list[list[int]]]
) -> Iterator[dict[str, Any]]:
    """Tokens a second of greedy whole answers, by load and depth, and how many times those of plain decoding that is.

    Plain decoding, without a head, and every depth answer the same prompts in turns; intervals come from resampling
    rounds of turns.
    """
    shapes = {depth: DraftShape(depth, 1, depth + 1) for depth in speed.depths}
    most = max(speed.concurrency)
    drafting = for_lane(served_pair(config, head), list(shapes.values()), rows=most)
    plain = for_lane(served_pair(config, None), (), rows=most)
    asked = itertools.cycle([ids for same in zip(*prompts.values(), strict=False) for ids in same])
    with closing(make_lane(drafting)) as lane, closing(make_lane(plain)) as plain_lane:
        modes: dict[int, Mode] = {PLAIN: (plain_lane, plain)}
        modes |= {depth: (lane, with_shape(drafting, shape)) for depth, shape in shapes.items()}
        for concurrency in speed.concurrency:
            rounds = _rounds(modes, speed, concurrency, asked, config.evaluate.max_tokens)
            works = {
                depth: work([sum(map(len, one.tokens)) for one in runs], [one.seconds for one in runs])
                for depth, runs in rounds.items()
            }
            for depth, runs in rounds.items():
                yield {"depth": depth, "concurrency": concurrency} | _timed(runs, ratio(works[depth], works[PLAIN]))


def _rounds(
    modes: dict[int, Mode], speed: Speed, concurrency: int, asked: Iterator[list[int]], max_tokens: int
) -> dict[int, list[Run]]:
    """By depth the runs of each round, in which every mode has one turn forth and one back."""

    def answered(depth: int, prompts: list[list[int]], longest: int) -> Run:
        lane, config = modes[depth]
        requests = ask(prompts, [0.0], max_tokens=longest, speculation=depth != PLAIN)
        return drive(lane, config, requests, concurrency=concurrency)

    runs: dict[int, list[Run]] = {depth: [] for depth in modes}
    for number in range(speed.rounds):
        turn = list(itertools.islice(asked, max(speed.answers, concurrency)))
        if number == 0:  # first steps build kernels and touch memory
            for depth in modes:
                answered(depth, turn, _WARM_UP_TOKENS)
        forth = {depth: answered(depth, turn, max_tokens) for depth in modes}
        for depth in reversed(modes):
            runs[depth].append(joined([forth[depth], answered(depth, turn, max_tokens)]))
    return runs


def _timed(runs: list[Run], over: Ratio) -> dict[str, Any]:
    done = joined(runs)
    figures = {
        "tokens_per_s": done.tokens_per_s,
        "over_plain": over.value,
        "over_plain_lower": over.lower,
        "over_plain_upper": over.upper,
        "chain_length": done.acceptance_length,
        "draft_seconds": done.phase_seconds.get("draft", 0.0),
        "extend_seconds": done.phase_seconds.get("extend", 0.0),
        "busy_seconds": done.busy_seconds,
    }
    return {key: round(value, 4) for key, value in figures.items()}


if __name__ == "__main__":
    app()

"""`python -m aerie.experiments [NAMES]`: the experiments of configs/train/experiments/, measured in the real engine.

Trains the proxy pair's target, then every arm of every experiment with every seed, and writes bench/results/NAME.json
and NAME.png after each. It can be stopped at any time and resumes where it was.
"""

import itertools
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from aerie.contracts.config import Config, parse_config
from aerie.contracts.step import Lane
from aerie.lane import make_lane
from aerie.train.experiments.config import Experiment, Proxy, load_experiment, load_proxy

CONFIGS = Path("configs/train/experiments")
PROXY = "proxy.yaml"
RESULTS = Path("bench/results")
_SPEED_REQUESTS = 2
"""Requests of a speed cell per concurrent request."""

app = typer.Typer(add_completion=False, help="Train and measure heads on the proxy pair.")


@app.command()
def run(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments to run; all by default.")] = None,
    configs: Annotated[Path, typer.Option(help="Folder of the configs.")] = CONFIGS,
    results: Annotated[Path, typer.Option(help="Folder of the results.")] = RESULTS,
) -> None:
    """Run experiments that have no results of their configs yet."""
    from aerie.bench.origin import STEPS
    from aerie.probe.report import provenance
    from aerie.train.experiments.plots import draw
    from aerie.train.experiments.proxy import prepare
    from aerie.train.experiments.table import run_experiment, write_results

    found = {path.stem: path for path in sorted(configs.glob("*.yaml")) if path.name != PROXY}
    unknown = sorted(set(names or ()) - set(found))
    if unknown:
        typer.echo(f"error: no experiment {', '.join(unknown)} in {configs}; there are {', '.join(found)}", err=True)
        raise typer.Exit(2)
    proxy = load_proxy(configs / PROXY)
    pair = prepare(proxy)
    for name in names or found:
        experiment, out = load_experiment(found[name]), results / f"{name}.json"
        if out.exists() and _answers(json.loads(out.read_text(encoding="utf-8")), proxy, experiment):
            typer.echo(f"{out} is there; kept")
            continue
        table = run_experiment(proxy, pair, experiment, measure)
        write_results(
            out,
            table,
            provenance(None, (*STEPS, "train", CONFIGS.as_posix())) | {"proxy": proxy.model_dump(mode="json")},
        )
        draw(out.with_suffix(".png"), table, along=experiment.along)
        typer.echo(f"{out} is written")


def _answers(results: dict[str, Any], proxy: Proxy, experiment: Experiment) -> bool:
    """Whether the results are those of these configs; older ones are made again."""
    arms = [arm.model_dump(mode="json") for arm in experiment.arms]
    made = results["provenance"].get("proxy")
    return bool(
        results["arms"] == arms and results["steps"] == experiment.steps and made == proxy.model_dump(mode="json")
    )


def measure(
    proxy: Proxy, experiment: Experiment, target: Path, head: Path, prompts: dict[str, list[list[int]]]
) -> Iterator[dict[str, Any]]:
    """Acceptance by task, shape and temperature; if the experiment asks for it, speed by depth and load."""
    from aerie.contracts.shape import DraftShape
    from aerie.probe.acceptance import CONCURRENCY, accepted
    from aerie.probe.shapes import for_lane, parse_shape

    shapes = {text: parse_shape(text) for text in experiment.shapes}
    chains = [DraftShape(depth, 1, depth + 1) for depth in (experiment.speed.depths if experiment.speed else ())]
    rows = max([CONCURRENCY, *(experiment.speed.concurrency if experiment.speed else ())])
    config = for_lane(_config(proxy, target, head), [*shapes.values(), *chains], rows=rows)
    with closing(make_lane(config)) as lane:
        for (task, ids), (text, shape), temperature in itertools.product(
            prompts.items(), shapes.items(), experiment.temperatures
        ):
            done = accepted(lane, config, shape, ids, temperature, proxy.max_tokens)
            yield {
                "task": task,
                "shape": text,
                "temperature": temperature,
                "acceptance_length": round(done.acceptance_length, 4),
                "acceptance_per_position": [round(share, 4) for share in done.acceptance_per_position],
            }
        yield from _speeds(proxy, experiment, lane, config, prompts)


def _speeds(
    proxy: Proxy, experiment: Experiment, lane: Lane, config: Config, prompts: dict[str, list[list[int]]]
) -> Iterator[dict[str, Any]]:
    """Measures speed with greedy decoding and answers of maximal length; depth 0 is plain decoding."""
    from aerie.contracts.shape import DraftShape
    from aerie.probe.drive import ask, drive
    from aerie.probe.shapes import with_shape

    if experiment.speed is None:
        return
    everything = [ids for task in prompts.values() for ids in task]
    for concurrency in experiment.speed.concurrency:
        asked = list(itertools.islice(itertools.cycle(everything), _SPEED_REQUESTS * concurrency))
        for depth in (0, *experiment.speed.depths):
            requests = ask(asked, [0.0], max_tokens=proxy.max_tokens, speculation=depth > 0, ignore_eos=True)
            shape = DraftShape(depth, 1, depth + 1) if depth else DraftShape(1, 1, 2)
            done = drive(lane, with_shape(config, shape), requests, concurrency=concurrency)
            yield {
                "depth": depth,
                "concurrency": concurrency,
                "tokens_per_s": round(done.tokens_per_s, 2),
                "chain_length": round(done.acceptance_length, 4),
                "draft_seconds": round(done.phase_seconds.get("draft", 0.0), 4),
                "extend_seconds": round(done.phase_seconds.get("extend", 0.0), 4),
                "busy_seconds": round(done.busy_seconds, 4),
            }


def _config(proxy: Proxy, target: Path, head: Path) -> Config:
    return parse_config(
        {
            "model": {"path": str(target)},
            "engine": {"lane": "inline", "threads": proxy.threads, "device": "cpu", "kv_tokens": 16384},
            "spec": {"head": str(head)},
        }
    )


if __name__ == "__main__":
    app()

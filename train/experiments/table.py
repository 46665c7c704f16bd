"""Runs an experiment from its config to its results: trains every arm with every seed, measures it, and sums up.

Called by `python -m aerie.experiments`, which supplies the engine. Finished work is kept: a head under a name for
everything that determines it, shared by experiments, its cells under one for how it was measured. A killed run goes on
from the stage's last checkpoint.
"""

import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.train.experiments.config import Arm, Experiment, Speed
from aerie.train.experiments.intervals import add_intervals
from aerie.train.experiments.lessons import key_of, lessons
from aerie.train.experiments.variants import beginning, settings_of
from aerie.train.pipeline import evaluate, features, fit, vocabulary
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.folder import Finished, linked, write_whole
from aerie.train.pipeline.order import Surroundings, run_each
from aerie.train.progress import say

Cell = dict[str, Any]
Prompts = dict[str, list[list[int]]]
MeasureSpeed = Callable[[PipelineConfig, Speed, Path, Prompts], Iterator[Cell]]
"""Maps a head's folder and prompts by task to cells: depth (0 is plain decoding), concurrency, tokens_per_s, and
over_plain with its interval."""

_KEYS = ("arm", "task", "shape", "temperature", "depth", "concurrency")
_FIGURES = ("acceptance_length", "tokens_per_s", "over_plain", "chain_length")


@dataclass(frozen=True, slots=True)
class Laboratory:
    """What every experiment works with: the proxy's pipeline, the engine and the server."""

    proxy: PipelineConfig
    around: Surroundings
    speed: MeasureSpeed
    code: str
    """A name for the code that speeds are measured with: those of other code are not taken."""


def run_experiment(laboratory: Laboratory, experiment: Experiment) -> dict[str, Any]:
    """The experiment's results: cells of each arm and seed, and their means."""
    proxy, cells, places = laboratory.proxy, list[Cell](), len(experiment.seeds)
    for arm in experiment.arms:
        taught = lessons(proxy, arm, laboratory.around)
        for place, seed in enumerate(experiment.seeds):
            stage = settings_of(proxy, arm, place=place, places=places)
            config = taught.model_copy(update={"train": stage, "seed": seed})
            say(f"{experiment.name}: {arm.name}, seed {seed}")
            head = train_arm(config, arm)
            found = measured(laboratory, experiment, head)
            cells += [{"arm": arm.name, "seed": seed, "answers": arm.answers, **cell} for cell in found]
    summed = means(cells)
    of_tasks = [cell for cell in cells if "by_answer" in cell]
    add_intervals(summed, of_tasks, {arm.name: experiment.beside(arm) for arm in experiment.arms})
    return {
        "experiment": experiment.name,
        "claim": experiment.claim,
        "arms": [arm.model_dump(mode="json") for arm in experiment.arms],
        "seeds": list(experiment.seeds),
        "steps": proxy.train.steps,
        "means": summed,
        "cells": [{key: value for key, value in cell.items() if key not in ("head", "by_answer")} for cell in cells],
    }


def identity(config: PipelineConfig, arm: Arm) -> str:
    """Identifies a trained head: everything that its weights depend on, without its name."""
    stage = config.train.model_dump(mode="json", exclude=fit.NOT_RESULTS)
    own = arm.model_dump(mode="json", include={"taps", "loss", "rows", "mask"})
    return key_of({"train": stage, "arm": own, "lessons": Path(config.work).name, "seed": config.seed})


def train_arm(config: PipelineConfig, arm: Arm) -> Path:
    """Trains the arm with the settings of `config.train` on the features in `config.work`; returns the work folder of
    its head, where its checkpoints are too.
    """
    folder = Path(config.work).parents[1] / "heads" / identity(config, arm)
    linked(Path(config.work), folder, (features.STAGE, vocabulary.STAGE))
    try:
        fit.train_head(config.model_copy(update={"work": str(folder)}), beginning(arm))
    except Finished:
        say(f"{folder.name}: trained, kept")
    return folder


def measured(laboratory: Laboratory, experiment: Experiment, head: Path) -> list[Cell]:
    """The cells of a head, by task and of all tasks, and those of its speed if the experiment asks for it."""
    proxy = laboratory.proxy
    stage = proxy.evaluate.model_copy(update={"shapes": experiment.shapes or proxy.evaluate.shapes})
    asked = stage.model_dump(mode="json", exclude={"settings"})
    work = head.with_name(f"{head.name}-{key_of([asked, proxy.seed])}")
    linked(head, work, (fit.STAGE,))
    config = proxy.model_copy(update={"work": str(work), "evaluate": stage})
    folder = run_each((evaluate.STAGE,), config, laboratory.around)
    cells: list[Cell] = json.loads((folder / evaluate.FILE).read_text(encoding="utf-8"))
    cells += evaluate.together(cells)
    if experiment.speed is not None:
        asked_speed = experiment.speed.model_dump(mode="json")
        path = work / f"speed-{key_of([asked_speed, laboratory.code])}.json"
        if not path.exists():
            prompts = evaluate.prompts_of(config)
            timed = list(laboratory.speed(config, experiment.speed, work / fit.STAGE / fit.HEAD, prompts))
            write_whole(path, json.dumps(timed).encode())
        cells += json.loads(path.read_text(encoding="utf-8"))
    return cells


def means(cells: list[Cell]) -> list[Cell]:
    """Over seeds: mean, standard deviation (0 for a single seed) and count of each figure of matching cells."""
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell.get(key) for key in _KEYS), []).append(cell)
    summed = []
    for key, group in groups.items():
        row: Cell = {name: value for name, value in zip(_KEYS, key, strict=True) if value is not None}
        row |= {"answers": group[0]["answers"], "seeds": len(group)}
        for figure in _FIGURES:
            values = [cell[figure] for cell in group if figure in cell]
            if values:
                row[figure] = round(statistics.fmean(values), 4)
                row[f"{figure}_deviation"] = round(statistics.stdev(values), 4) if len(values) > 1 else 0.0
        summed.append(row)
    return summed


def write_results(path: Path, results: dict[str, Any], provenance: dict[str, Any]) -> None:
    """Writes the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(results | {"provenance": provenance}, indent=1) + "\n").encode())

"""Runs an experiment from its config to its results: trains every arm with every seed, measures it, and sums up.

Called by `python -m aerie.experiments`, which supplies `measure`. Finished work is kept: a head under a hash of
everything that determines it, shared by experiments, with its cells beside it. A kill costs at most the work since a
checkpoint.
"""

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aerie.train.experiments.config import Arm, Experiment, Proxy
from aerie.train.experiments.proxy import Pair, held_out_prompts
from aerie.train.experiments.variants import train_arm

Cell = dict[str, Any]
Prompts = dict[str, list[list[int]]]
Measure = Callable[[Proxy, Experiment, Path, Path, Prompts], Iterator[Cell]]
"""Maps the folders of target and head to cells: task, shape, temperature and acceptance_length; or depth, concurrency
and tokens_per_s.
"""

_T975 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t at 0.975 by the number of seeds."""
_KEYS = ("arm", "task", "shape", "temperature", "depth", "concurrency")
_FIGURES = ("acceptance_length", "tokens_per_s", "chain_length")


def run_experiment(proxy: Proxy, pair: Pair, experiment: Experiment, measure: Measure) -> dict[str, Any]:
    """The experiment's results: cells of each arm and seed, and their means."""
    prompts = held_out_prompts(proxy, pair)
    cells = []
    for arm in experiment.arms:
        for seed in experiment.seeds:
            folder = Path(proxy.work) / "heads" / identity(proxy, experiment, arm, seed)
            if not (folder / "head" / "model.safetensors").exists():
                print(f"{experiment.name}: training {arm.name}, seed {seed}", flush=True)
                train_arm(proxy, pair, experiment, arm, seed, folder)
            found = _measured(proxy, pair, experiment, folder, prompts, measure)
            cells += [{"arm": arm.name, "seed": seed, "answers": arm.answers, **cell} for cell in found]
    summed = means(cells)
    compare(summed, [arm.name for arm in experiment.arms], experiment.beside)
    return {
        "experiment": experiment.name,
        "claim": experiment.claim,
        "arms": [arm.model_dump() for arm in experiment.arms],
        "seeds": list(experiment.seeds),
        "steps": experiment.steps,
        "means": summed,
        "cells": cells,
    }


def identity(proxy: Proxy, experiment: Experiment, arm: Arm, seed: int) -> str:
    """Identifies a trained head: everything that its weights depend on, without its name."""
    made = {
        "proxy": proxy.model_dump(mode="json", exclude={"threads", "questions", "max_tokens", "work"}),
        "arm": arm.model_dump(mode="json", exclude={"name"}),
        "course": [experiment.steps, experiment.tokens_per_batch, experiment.matrix_rate, experiment.vector_rate],
        "seed": seed,
    }
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:16]


def _measured(
    proxy: Proxy, pair: Pair, experiment: Experiment, folder: Path, prompts: Prompts, measure: Measure
) -> list[Cell]:
    asked = experiment.model_dump(mode="json", include={"shapes", "temperatures", "speed"})
    key = hashlib.sha256(json.dumps([asked, proxy.questions, proxy.max_tokens]).encode()).hexdigest()[:12]
    path = folder / f"cells-{key}.json"
    if not path.exists():
        cells = list(measure(proxy, experiment, pair.folder, folder / "head", prompts))
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(cells))
        fresh.rename(path)
    found: list[Cell] = json.loads(path.read_text())
    return found


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


def compare(rows: list[Cell], arms: list[str], beside: str) -> None:
    """Adds to each mean length the arm that it stands `beside`, the difference, and whether that is within the noise:
    less than its 95 % interval over seeds (Welch's, with the freedom of the smaller sample); None for a single seed.
    """
    others = {arm: arms[0] if beside == "first" else arms[at - 1] for at, arm in enumerate(arms) if at}
    known = {tuple(row.get(key) for key in _KEYS): row for row in rows if "acceptance_length" in row}
    for row in known.values():
        other = known.get((others.get(row["arm"]), *(row.get(key) for key in _KEYS[1:])))
        if other is None:
            continue
        count = min(row["seeds"], other["seeds"])
        deviations = [one["acceptance_length_deviation"] for one in (row, other)]
        difference = row["acceptance_length"] - other["acceptance_length"]
        half = _T975[count] * math.hypot(*deviations) / count**0.5 if count in _T975 else None
        row |= {"beside": other["arm"], "difference": round(difference, 4)}
        row["within_noise"] = None if half is None else abs(difference) <= half


def write_results(path: Path, results: dict[str, Any], provenance: dict[str, Any]) -> None:
    """Writes the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(results | {"provenance": provenance}, indent=1) + "\n", encoding="utf-8")
    fresh.rename(path)

"""EAGLE-3 heads by other trainers, from the same answers, target and number of steps, beside Aerie's in Aerie's engine.

    python -m aerie.experiments ablation [SETTING=VALUE ...]
    python scripts/other_trainers.py [SETTING=VALUE ...] --speculators VENV/bin/python --json build/trainers.json

The other trainer lives in an environment of its own, whose Python is named. SETTING is one of the proxy, as in
train.threads=1; with the same settings Aerie's heads are those of the ablation. The other trainer learns from the
features of the proxy pair's answers (configs/train/experiments/proxy.yaml), to the depth of the arm `fused taps` of
ablation.yaml, as it comes and with Aerie's rates. What is done is kept; stop and start again at will.
"""

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from aerie.bench.origin import STEPS
from aerie.contracts.provenance import file_hash
from aerie.experiments import CONFIGS, described, laboratory, load_proxy
from aerie.probe.report import provenance
from aerie.train.experiments.config import Arm, load_experiment
from aerie.train.experiments.intervals import add_intervals
from aerie.train.experiments.lessons import lessons, place_of
from aerie.train.experiments.table import Laboratory, means, measured, train_arm, write_results
from aerie.train.experiments.variants import settings_of
from aerie.train.pipeline import features, fit
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.data.shards import Shards
from aerie.train.pipeline.folder import Finished, begin

AERIE = "Aerie"
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    AERIE: ("fused taps", {}),
    "Aerie with norms": ("norms", {}),
    "Aerie with norms, every row to the full depth": ("norms", {"draw_depth": False}),
    "Aerie with a normed residual": ("normed residual", {}),
}
"""Aerie's heads: arms of the ablation, and what of the stage `train` differs. The other trainer has norms, too, unrolls
every row to the full depth and takes the residual behind its norm.
"""
SPECULATORS = Path(__file__).with_name("peers") / "train_speculators.py"
VARIANTS = {
    "speculators as it comes": [],
    "speculators at Aerie's rates": [
        *("--lr", "0.002", "--muon-lr", "0.005", "--weight-decay", "0", "--muon-weight-decay", "0.05"),
        *("--scheduler-warmup-steps", "20", "--ttt-step-loss-decay", "0.8"),
    ],
}
"""Arms, with their flags of `speculators train`."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("settings", nargs="*", help="section.key=value, of the proxy")
    arguments.add_argument("--speculators", required=True, help="the Python of an environment that has speculators")
    arguments.add_argument("--json", type=Path, required=True, help="file of the results")
    arguments.add_argument("--seeds", type=int, nargs="+", help="those of the experiment by default")
    given = arguments.parse_intermixed_args()
    proxy, experiment = load_proxy(CONFIGS, given.settings), load_experiment(CONFIGS / "ablation.yaml")
    arms = {arm.name: arm for arm in experiment.arms}
    arm = arms[OURS[AERIE][0]]
    changed = {"arms": (arm,), "seeds": tuple(given.seeds or experiment.seeds)}
    working, places = laboratory(proxy), len(experiment.seeds)
    experiment = experiment.model_copy(update=changed)
    taught, cells = lessons(proxy, arm, working.around), list[dict[str, Any]]()
    for place, seed in enumerate(experiment.seeds):
        heads = dict[str, Path]()
        for name, (own, settings) in OURS.items():
            stage = settings_of(proxy, arms[own], place=place, places=places).model_copy(update=settings)
            config = taught.model_copy(update={"train": stage, "seed": seed})
            heads[name] = train_arm(config, arms[own])
        data = _data(config, heads[AERIE], place_of(proxy) / "trainers" / str(seed))
        for name, flags in VARIANTS.items():
            folder = data.parent / name.replace(" ", "-").replace("'", "")
            words = ["--ttt-steps", str(arm.depth), "--seed", str(seed), *flags]
            heads[name] = _trained(given.speculators, config, data, words, folder)
        for name, work in heads.items():
            found = measured(working, experiment, work)
            cells += [{"arm": name, "seed": seed, "answers": arm.answers, **cell} for cell in found]
        results = _results(working, arm, cells) | {"versions": _versions(given.speculators)}
        origin = provenance(None, (*STEPS, "train", CONFIGS.as_posix(), proxy.target))
        write_results(given.json, results, origin | {"made_from": described(proxy, experiment)})
        print(f"{given.json}: seeds up to {seed}")
    for row in results["means"]:
        print(json.dumps(row))


def _results(working: Laboratory, arm: Arm, cells: list[dict[str, Any]]) -> dict[str, Any]:
    summed = means(cells)
    of_tasks = [cell for cell in cells if "by_answer" in cell]
    add_intervals(summed, of_tasks, dict.fromkeys([*OURS, *VARIANTS], AERIE) | {AERIE: None})
    return {
        "experiment": "trainers",
        "claim": "Aerie's trainer beside speculators', on the same answers, target and steps",
        "depth": arm.depth,
        "steps": working.proxy.train.steps,
        "variants": VARIANTS,
        "means": summed,
        "cells": [{key: value for key, value in cell.items() if key not in ("head", "by_answer")} for cell in cells],
    }


def _data(config: PipelineConfig, head: Path, folder: Path) -> Path:
    """Writes ids, answer marks and states of the conversations that `config.train` reads, one after the other, and the
    draft vocabulary's ids.

    `states` [tokens, taps + 1, hidden]: the three taps and the last layer's output before the norm.
    """
    path = folder / "data.safetensors"
    if path.exists():
        return path
    shards = Shards(Path(config.work) / features.STAGE)
    places = [(shard, place) for shard, lengths in enumerate(shards.lengths) for place in range(len(lengths))]
    documents = [shards.document(*place) for place in places[slice(*(config.train.documents or (None,)))]]
    states = [torch.cat([one.states.taps, one.states.final], -1) for one in documents if one.states is not None]
    maps = load_file(head / fit.STAGE / fit.HEAD / "model.safetensors")
    tensors = {
        "ids": torch.cat([one.ids for one in documents]),
        "answer": torch.cat([one.answer for one in documents]),
        "lengths": torch.tensor([len(one.ids) for one in documents]),
        "states": torch.cat(states).unflatten(-1, (-1, shards.index.hidden)),
        "d2t": maps["d2t"],
        "t2d": maps["t2d"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)
    return path


def _trained(python: str, config: PipelineConfig, data: Path, flags: list[str], folder: Path) -> Path:
    """The work folder of the head, laid out as the pipeline's; trains it if it is missing."""
    stage = config.train
    sizes = ["--steps", str(stage.steps), "--tokens", str(stage.tokens)]
    try:
        begun = begin(folder, fit.STAGE, {"flags": [*sizes, *flags]}, {"data": file_hash(data)})
    except Finished:
        return folder
    command = [python, str(SPECULATORS), str(data), config.target, str(begun.path)]
    subprocess.run([*command, *sizes, "--threads", str(stage.threads), *flags], check=True)
    begun.finish({"steps": stage.steps})
    return folder


def _versions(python: str) -> dict[str, str]:
    program = "import json; from importlib.metadata import version as v; print(json.dumps({n: v(n) for n in {names}}))"
    names = ["speculators", "torch", "transformers"]
    program = program.replace("{names}", repr(names))
    done = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()

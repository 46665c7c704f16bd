"""EAGLE-3 heads by other trainers, from the same answers, target and number of steps, beside Aerie's in Aerie's engine.

    python -m aerie.experiments ablation
    python scripts/other_trainers.py --speculators VENV/bin/python --json bench/results/trainers.json

The other trainer lives in an environment of its own, whose Python is named. It learns from the features of the proxy
pair's answers (configs/train/experiments/proxy.yaml), to the depth of the arm `training-time test` of ablation.yaml, as
it comes and with Aerie's rates. What is done is kept under build/trainers; stop and start again at will.
"""

import argparse
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from aerie.bench.origin import STEPS
from aerie.experiments import CONFIGS, PROXY, measure
from aerie.probe.report import provenance
from aerie.train.experiments.config import Arm, Experiment, Proxy, load_experiment, load_proxy
from aerie.train.experiments.proxy import Pair, answers, held_out_prompts, prepare
from aerie.train.experiments.table import identity, means, run_experiment, write_results
from aerie.train.experiments.teaching import Teacher
from aerie.train.heads.head import default_boundaries

OURS = "training-time test"
WORK = Path("build/trainers")
SPECULATORS = Path(__file__).with_name("peers") / "train_speculators.py"
VARIANTS = {
    "speculators as it comes": [],
    "speculators at Aerie's rates": [
        *("--lr", "0.004", "--muon-lr", "0.01", "--weight-decay", "0", "--muon-weight-decay", "0.05"),
        *("--scheduler-warmup-steps", "20", "--ttt-step-loss-decay", "0.8"),
    ],
}
"""Arms, with their flags of `speculators train`."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--speculators", required=True, help="the Python of an environment that has speculators")
    arguments.add_argument("--json", type=Path, required=True, help="file of the results")
    arguments.add_argument("--seeds", type=int, nargs="+", help="those of the experiment by default")
    arguments.add_argument("--threads", type=int, help="those of the proxy by default")
    given = arguments.parse_args()
    proxy, experiment = load_proxy(CONFIGS / PROXY), load_experiment(CONFIGS / "ablation.yaml")
    proxy = proxy.model_copy(update={"threads": given.threads or proxy.threads})
    arm = next(arm for arm in experiment.arms if arm.name == OURS)
    changed = {"arms": (arm,), "seeds": tuple(given.seeds or experiment.seeds)}
    experiment = experiment.model_copy(update=changed)
    pair = prepare(proxy)
    cells = [cell | {"arm": "Aerie"} for cell in run_experiment(proxy, pair, experiment, measure)["cells"]]
    data = _data(proxy, pair, experiment, arm)
    for seed in experiment.seeds:
        for name, flags in VARIANTS.items():
            folder = WORK / name.replace(" ", "-").replace("'", "") / str(seed)
            words = ["--ttt-steps", str(arm.depth), "--seed", str(seed), *flags]
            head = _trained(given.speculators, proxy, pair, experiment, data, words, folder)
            found = _measured(proxy, pair, experiment, head, folder / "cells.json")
            cells += [{"arm": name, "seed": seed, "answers": arm.answers, **cell} for cell in found]
        results = _results(experiment, arm, cells) | {"versions": _versions(given.speculators)}
        write_results(
            given.json,
            results,
            provenance(None, (*STEPS, "train", "configs/train/experiments")) | {"proxy": proxy.model_dump(mode="json")},
        )
        print(f"{given.json}: seeds up to {seed}")
    for row in means(cells):
        print(json.dumps(row))


def _results(experiment: Experiment, arm: Arm, cells: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "experiment": "trainers",
        "claim": "Aerie's trainer beside speculators', on the same answers, target and steps",
        "depth": arm.depth,
        "steps": experiment.steps,
        "variants": VARIANTS,
        "means": means(cells),
        "cells": cells,
    }


def _data(proxy: Proxy, pair: Pair, experiment: Experiment, arm: Arm) -> Path:
    """Writes ids, answer marks and states of all conversations, one after the other, and the draft vocabulary's ids.

    `states` [tokens, taps + 1, hidden]: the three taps and the last layer's output before the norm.
    """
    path = WORK / "data.safetensors"
    if path.exists():
        return path
    each = arm.answers // len(arm.domains)
    samples = [sample for domain in arm.domains for sample in answers(proxy, pair, domain, each)]
    boundaries, longest = (*default_boundaries(pair.layers), pair.layers), max(len(sample.ids) for sample in samples)
    teacher = Teacher(pair.folder, boundaries, longest=longest, threads=proxy.threads)
    hidden = teacher.end.model.hidden_size
    states = [teacher.show(n, torch.tensor([sample.ids])).taps[0].bfloat16() for n, sample in enumerate(samples)]
    trained = Path(proxy.work) / "heads" / identity(proxy, experiment, arm, experiment.seeds[0]) / "head"
    maps = load_file(trained / "model.safetensors")
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {
        "ids": torch.tensor([token for sample in samples for token in sample.ids]),
        "answer": torch.tensor([said for sample in samples for said in sample.answer]),
        "lengths": torch.tensor([len(sample.ids) for sample in samples]),
        "states": torch.cat(states).view(-1, len(teacher.boundaries), hidden),
        "d2t": maps["d2t"],
        "t2d": maps["t2d"],
    }
    save_file(tensors, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)
    return path


def _trained(
    python: str, proxy: Proxy, pair: Pair, experiment: Experiment, data: Path, flags: list[str], folder: Path
) -> Path:
    """The folder of the head; trains it if it is missing."""
    head = folder / "head"
    if not (head / "model.safetensors").exists():
        command = [python, str(SPECULATORS), str(data), str(pair.folder), str(folder)]
        command += ["--steps", str(experiment.steps), "--tokens", str(experiment.tokens_per_batch)]
        command += ["--threads", str(proxy.threads), *flags]
        subprocess.run(command, check=True)
    return head


def _measured(proxy: Proxy, pair: Pair, experiment: Experiment, head: Path, path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        cells = list(measure(proxy, experiment, pair.folder, head, held_out_prompts(proxy, pair)))
        path.write_text(json.dumps(cells))
    yield from json.loads(path.read_text())


def _versions(python: str) -> dict[str, str]:
    program = "import json; from importlib.metadata import version as v; print(json.dumps({n: v(n) for n in {names}}))"
    names = ["speculators", "torch", "transformers"]
    program = program.replace("{names}", repr(names))
    done = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()

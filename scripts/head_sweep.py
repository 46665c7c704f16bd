"""Heads that differ in one setting of a recipe: what the target accepts of each, and what that gains in time.

    aerie train all configs/train/demo.yaml
    python scripts/head_sweep.py configs/train/demo.yaml [SETTING=VALUE ...] --serve configs/serve/demo.yaml
        --vary vocabulary.size=768,1024 --vary train.intermediate_size=512,1024,2048 --json bench/results/heads.json

The recipe's stages up to the features are finished before; all heads learn from them. Each head is trained in a folder
of its own, evaluated on held-out prompts, and served beside plain decoding on the demo's mix. SETTING holds for every
head, as in train.steps=1000. What is done is kept: stop and start again at will.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from aerie.bench.origin import FIXED
from aerie.probe.report import Cell, write_report
from aerie.train.pipeline import evaluate
from aerie.train.pipeline.config import PipelineConfig, load_pipeline
from aerie.train.pipeline.folder import linked
from aerie.train.pipeline.order import stages_of

_OWN = ("vocabulary", "train", "evaluate")
"""Stages that a head runs itself."""
_TIMED = ("--mix", "demo", "--concurrency", "1,8", "--temperature", "0,0.8", "--dtype", "float32")
_LONGEST = 400
_KEPT = ("mode", "overlap", "temperature", "concurrency", "tokens_per_s", "speedup", "acceptance_length")
_PLANNED = "preset"
"""The mode in which the planner chooses: no matter of the head alone."""

Head = dict[str, str]
"""The settings of a head that are not the recipe's."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("recipe", type=Path)
    arguments.add_argument("settings", nargs="*", help="section.key=value, for every head")
    arguments.add_argument("--serve", required=True, help="the config that serves the pair")
    arguments.add_argument("--vary", action="append", default=[], metavar="SETTING=VALUE,...")
    arguments.add_argument("--prompts", type=int, default=44, help="held-out prompts that are timed")
    arguments.add_argument("--json", type=Path, required=True, help="file of the results")
    given = arguments.parse_intermixed_args()
    config = load_pipeline(given.recipe, given.settings)
    cells: list[Cell] = []
    means: list[Cell] = []
    for head in heads(given.vary):
        accepted, timed = _measured(given, config, head)
        name = {"head": _name(head)}
        means += [name | cell for cell in accepted]
        cells += [name | cell for cell in timed]
    write_report(given.json, cells, None, (*FIXED, "train"), means=means)


def heads(varied: list[str]) -> list[Head]:
    """The recipe's own head, then one for each value of each setting."""
    found: list[Head] = [{}]
    for text in varied:
        setting, _, values = text.partition("=")
        found += [{setting: value} for value in values.split(",")]
    return found


def _measured(given: argparse.Namespace, config: PipelineConfig, head: Head) -> tuple[list[Cell], list[Cell]]:
    """Acceptance of the head's chains and trees over all tasks, and the cells of the timed modes."""
    folder = _begun(config, head)
    own = [f"{setting}={value}" for setting, value in head.items()]
    settings = [f"target={config.target}", *given.settings, *own, f"work={folder}"]
    for stage in _OWN:
        if not (folder / stage).exists():
            _aerie("train", stage, str(given.recipe), *settings)
    timed = folder / "compare.json"
    if not timed.exists():
        pair = [f"model.path={config.target}", f"spec.head={folder / 'train/head'}"]
        sizes = ["--prompts", str(given.prompts), "--max-tokens", str(_LONGEST)]
        _aerie("probe", "compare", given.serve, *pair, *_TIMED, *sizes, "--json", str(timed))
    measured = evaluate.together(json.loads((folder / evaluate.STAGE / evaluate.FILE).read_text(encoding="utf-8")))
    accepted = [{key: one[key] for key in ("shape", "temperature", "acceptance_length")} for one in measured]
    cells = [one for one in json.loads(timed.read_text(encoding="utf-8"))["cells"] if one["mode"] != _PLANNED]
    return accepted, [{key: one[key] for key in _KEPT} for one in cells]


def _name(head: Head) -> str:
    return "-".join(f"{setting}={value}" for setting, value in head.items()) or "recipe"


def _begun(config: PipelineConfig, head: Head) -> Path:
    """The head's folder of work, in which the recipe's stages before its own are links."""
    work = Path(config.work)
    folder = work / "sweep" / _name(head)
    stages = stages_of(config)
    return linked(work, folder, stages[: stages.index(_OWN[0])])


def _aerie(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "aerie", *words], check=True)


if __name__ == "__main__":
    main()

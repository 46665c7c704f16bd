"""Trains a demo-sized pair on a GPU in minutes and measures it there: real acceptance, and the same tokens.

    python scripts/gpu_pair.py --json bench/results/gpu/pair.json

The target learns the generated tasks of configs/train/demo.yaml, the stages of that recipe make its head, and `aerie
probe compare` checks speculation against plain decoding. Exits with code 1 if any float32 answer differs. With
`--quick` a few steps on any device show that it runs.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch

from aerie.train.demo.pretrain import pretrain
from aerie.train.pipeline.config import load_pipeline

HOME = Path(__file__).resolve().parents[1]
RECIPE = "configs/train/demo.yaml"


def train_target(out: Path, device: str, *, steps: int, tokens: int) -> None:
    """Trains the recipe's target for so many steps, a quarter of them thin, without a longer end; keeps a finished
    one.
    """
    if (out / "model.safetensors").exists():
        return
    loaded = load_pipeline(HOME / RECIPE)
    given = loaded.pretrain
    assert given is not None
    thin = given.thin.model_copy(update={"steps": steps // 4})
    run = given.model_copy(update={"thin": thin, "steps": steps, "tokens_per_batch": tokens, "longer": None})
    with torch.device(device):  # everything that training creates is created there
        pretrain(run, out, seed=loaded.seed)


def train_head(target: Path, work: Path, device: str, settings: list[str]) -> Path:
    aerie(
        "train",
        "all",
        RECIPE,
        f"target={target}",
        f"work={work}",
        "pretrain.longer=null",
        f"features.device={device}",
        f"train.device={device}",
        f"evaluate.settings=[engine.device={device},engine.kv_tokens=32768]",
        *settings,
    )
    return work / "export/specforge"


def compare(target: Path, head: Path, device: str, out: Path, options: list[str]) -> bool:
    """Whether every answer in float32 was the same."""
    places = [f"model.path={target}", f"spec.head={head}", f"engine.device={device}", "spec.by_load=[]"]
    aerie("probe", "compare", "configs/serve/demo.yaml", *places, "--json", str(out), *options)
    cells = json.loads(out.read_text(encoding="utf-8"))["cells"]
    drafted = [cell for cell in cells if cell["mode"] != "off" and cell["dtype"] == "float32"]
    lengths = sorted({(cell["mode"], round(cell["acceptance_length"], 2)) for cell in drafted})
    print(f"acceptance length on {device}: {lengths}")
    return all(cell["identical"] == 1 for cell in drafted)


def aerie(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "aerie", *arguments], cwd=HOME, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=HOME / "build/gpu-pair")
    parser.add_argument("--json", type=Path, default=HOME / "bench/results/gpu/pair.json")
    parser.add_argument("--device", default="cuda", help="auto: the GPU where there is one")
    parser.add_argument("--quick", action="store_true", help="a few steps and answers")
    given = parser.parse_args()
    if given.device == "auto":
        given.device = "cuda" if torch.cuda.is_available() else "cpu"
    target, work, out = (path.resolve() for path in (given.work / "target", given.work / "head", given.json))
    if given.quick:
        train_target(target, given.device, steps=4, tokens=768)
        settings = [
            "prompts.drawn=12",
            "respond.max_tokens=8",
            "respond.concurrency=4",
            "train.steps=2",
            "train.depth=2",
        ]
        settings += ["evaluate.drawn=1", "evaluate.temperatures=[0.0]", "evaluate.max_tokens=8"]
        settings += ["evaluate.shapes=['2,1,3']"]
        options = ["--quick", "--concurrency", "1", "--temperature", "0", "--dtype", "float32"]
    else:
        train_target(target, given.device, steps=1500, tokens=3072)
        settings = ["prompts.drawn=1000", "respond.concurrency=64", "train.steps=1000", "train.tokens=4096"]
        settings += ["evaluate.drawn=4", "evaluate.temperatures=[0.0]"]
        options = ["--concurrency", "1,8", "--prompts", "22", "--max-tokens", "128"]  # two exercises of each task
    head = train_head(target, work, given.device, settings)
    same = compare(target, head, given.device, out, options)
    print("every answer in float32 is the same" if same else "some answers in float32 differ")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())

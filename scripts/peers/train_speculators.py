"""Trains an EAGLE-3 head with speculators' own trainer, on a CPU, from features that Aerie computed.

    VENV/bin/python scripts/peers/train_speculators.py DATA TARGET OUT --steps 350 --tokens 1024 --ttt-steps 5 [FLAGS]

Called by scripts/other_trainers.py, in an environment that has speculators and not Aerie. FLAGS are those of
`speculators train`. The trainer sends model and batches to an accelerator by number, and waits for it to take times;
here that number is the CPU and there is nothing to wait for. Nothing else of it is changed. The head comes to lie in
OUT/head, in speculators' layout.
"""

import argparse
import os
import shutil
from pathlib import Path

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # before torch is imported: skips compilation

import numpy as np
import speculators.train.trainer as trainer
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from speculators.train.cli import main as train
from speculators.train.config import TrainConfig
from speculators.train.distributed_batch_sampler import MultipackDistributedBatchSamplerV2

_HELD_BACK = 16
"""Size of the validation set that the trainer requires; its conversations are in the training set too."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("data", type=Path)
    arguments.add_argument("target")
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--steps", type=int, required=True)
    arguments.add_argument("--tokens", type=int, required=True)
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--seed", type=int, default=0)
    given, flags = arguments.parse_known_args()
    torch.set_num_threads(given.threads)
    prepared = given.data.with_name("speculators-data")
    lengths = _prepare(given.data, prepared)
    trainer.get_local_rank = lambda: torch.device("cpu")
    torch.accelerator.synchronize = lambda *_: None
    shutil.rmtree(given.out / "checkpoints", ignore_errors=True)
    whole = len(lengths)
    epochs = _epochs(lengths[: whole - _HELD_BACK], given.tokens, given.seed, given.steps)
    words = {
        "speculator-type": "eagle3",
        "verifier-name-or-path": given.target,
        "data-path": prepared,
        "save-path": given.out / "checkpoints",
        "draft-arch": "llama",
        "num-layers": 1,
        "full-attention-indices": 0,
        "target-layer-ids": "2 4 5",
        "d2t-path": prepared / "d2t.npy",
        "t2d-path": prepared / "t2d.npy",
        "draft-attn-impl": "eager",
        "loss-implementation": "eager",
        "hidden-states-dtype": "float32",
        "total-seq-len": given.tokens,
        "train-data-ratio": (whole - _HELD_BACK + 0.5) / whole,
        "on-missing": "raise",
        "num-workers": 0,
        "epochs": epochs,
        "max-steps": given.steps,
        "seed": given.seed,
        "log-freq": 50,
    }
    argv = [word for name, value in words.items() for word in (f"--{name}", *str(value).split())]
    train(TrainConfig.resolve([*argv, *flags]))
    fresh = given.out / "head.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(given.out / "checkpoints" / str(epochs - 1) / name, fresh)
    fresh.rename(given.out / "head")
    shutil.rmtree(given.out / "checkpoints")


def _prepare(data: Path, out: Path) -> list[int]:
    """Writes the trainer's input: a data set of ids and masks, a file of states for each, and the vocabulary's maps."""
    tensors = load_file(data)
    lengths = tensors["lengths"].tolist()
    parts = [tensors[name].split(lengths) for name in ("ids", "answer", "states")]
    places = [*range(len(lengths)), *range(_HELD_BACK)]
    if not (out / "done").exists():
        shutil.rmtree(out, ignore_errors=True)
        (out / "hidden_states").mkdir(parents=True)
        rows = [{"input_ids": parts[0][n], "loss_mask": parts[1][n], "seq_len": lengths[n]} for n in places]
        columns = {
            "input_ids": [row["input_ids"].tolist() for row in rows],
            "loss_mask": [row["loss_mask"].tolist() for row in rows],
            "seq_len": [row["seq_len"] for row in rows],
        }
        Dataset.from_dict(columns).with_format("torch").save_to_disk(str(out))
        for number, n in enumerate(places):
            states = {"token_ids": parts[0][n].clone(), "hidden_states": parts[2][n].clone()}
            save_file(states, out / f"hidden_states/hs_{number}.safetensors")
        np.save(out / "d2t.npy", tensors["d2t"].numpy())
        np.save(out / "t2d.npy", tensors["t2d"].numpy())
        (out / "done").touch()
    return [lengths[n] for n in places]


def _epochs(lengths: list[int], tokens: int, seed: int, steps: int) -> int:
    """Epochs that contain this many steps: each epoch past the last step would take one more."""
    sampler = MultipackDistributedBatchSamplerV2(tokens, lengths, num_replicas=1, rank=0, seed=seed)
    epoch = done = 0
    while done < steps:
        sampler.set_epoch(epoch)
        done += len(sampler)
        epoch += 1
    return epoch


if __name__ == "__main__":
    main()

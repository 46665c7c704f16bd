"""Checkpoints of a training run in safetensors: weights, optimizer state, step; replaced as a whole or not at all."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

_STATE = "state.json"


def save(folder: Path, step: int, model: nn.Module, optimizers: list[Optimizer]) -> None:
    """Writes beside `folder` and renames, so that a kill at any moment leaves the last complete checkpoint."""
    fresh = folder.with_name(folder.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    save_file({name: weight.detach() for name, weight in model.named_parameters()}, fresh / "weights.safetensors")
    for index, optimizer in enumerate(optimizers):
        save_file(_flat(optimizer), fresh / f"optimizer-{index}.safetensors")
    (fresh / _STATE).write_text(json.dumps({"step": step}))  # written last: it completes the checkpoint
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def load(folder: Path, model: nn.Module, optimizers: list[Optimizer]) -> int:
    """Restores model and optimizers in place and returns the step to resume from; 0 without a checkpoint."""
    step = load_weights(folder, model)
    for index, optimizer in enumerate(optimizers):
        if step:
            _restore(optimizer, load_file(folder / f"optimizer-{index}.safetensors"))
    return step


def load_weights(folder: Path, model: nn.Module) -> int:
    """Restores the model alone, in place, and returns its step; 0 without a checkpoint."""
    fresh = folder.with_name(folder.name + ".new")
    if not folder.exists() and (fresh / _STATE).exists():  # killed after writing, before the swap
        fresh.rename(folder)
    if not folder.exists():
        return 0
    weights = load_file(folder / "weights.safetensors")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(weights[name])
    return int(json.loads((folder / _STATE).read_text())["step"])


def _flat(optimizer: Optimizer) -> dict[str, Tensor]:
    state = optimizer.state_dict()["state"]
    return {f"{index}.{key}": tensor for index, entry in state.items() for key, tensor in entry.items()}


def _restore(optimizer: Optimizer, flat: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in flat.items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})

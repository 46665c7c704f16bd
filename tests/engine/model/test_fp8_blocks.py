"""FP8 in blocks equals the same weights without quantization."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from aerie.contracts.errors import ConfigError
from aerie.engine.model.config import read_model_config
from tests.engine.model.test_formats import load

Models = Callable[[str], tuple[Path, Any]]
BLOCK = [48, 56]
"""Divides no side of a matrix."""
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": BLOCK}


def write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def quantized(tensor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A matrix in e4m3 and its scales, block by block, and the matrix that these stand for."""
    stored, numbers = torch.empty(tensor.shape, dtype=torch.float8_e4m3fn), torch.empty(tensor.shape)
    rows = []
    for top in range(0, tensor.shape[0], BLOCK[0]):
        rows.append([])
        for left in range(0, tensor.shape[1], BLOCK[1]):
            block = slice(top, top + BLOCK[0]), slice(left, left + BLOCK[1])
            scale = tensor[block].abs().max() / 448
            stored[block] = (tensor[block] / scale).to(torch.float8_e4m3fn)
            numbers[block] = stored[block].float() * scale
            rows[-1].append(scale)
    return stored, torch.tensor(rows), numbers


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_weights_are_multiplied_by_the_scales_of_their_blocks(models: Models, tmp_path: Path, family: str) -> None:
    folder, _ = models(family)
    config = json.loads((folder / "config.json").read_text())
    stored, numbers = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        stored[name] = numbers[name] = tensor
        if "_proj.weight" in name and "layers.1.mlp" not in name:  # formats leave modules out
            stored[name], stored[f"{name}_scale_inv"], numbers[name] = quantized(tensor)
    eight = load(write(tmp_path / "fp8", stored, config | {"quantization_config": FP8}))
    whole = load(write(tmp_path / "numbers", numbers, config))
    for one, other in zip(eight.body.stack.matrices, whole.body.stack.matrices, strict=True):
        assert torch.equal(one.weight, other.weight)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weight_block_size": None}, r"weight_block_size is None; .* such as \[128, 128\]"),
        ({"weight_block_size": [128, 0]}, r"weight_block_size is \[128, 0\]"),
        ({"scale_fmt": "ue8m0"}, "scale_fmt is 'ue8m0'"),
    ],
)
def test_other_scales_are_refused(models: Models, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    config = json.loads((models("llama")[0] / "config.json").read_text()) | {"quantization_config": FP8 | changes}
    with pytest.raises(ConfigError, match=said):
        read_model_config(write(tmp_path / "a", {"x": torch.ones(1)}, config))

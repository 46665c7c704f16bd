"""A format of quantized weights is one reader: merged, reordered and tied matrices follow from it."""

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from aerie.contracts.config import parse_config
from aerie.contracts.errors import ConfigError
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.build import load_target
from aerie.engine.memory import plan_sizes
from aerie.engine.model.config import read_model_config
from aerie.engine.model.decoder import Decoder
from aerie.engine.model.formats import FORMATS
from aerie.engine.model.matrix import Matrix, Rounded, rounded
from aerie.engine.model.weights import Source
from tests.house import sources

Models = Callable[[str], tuple[Path, Any]]


def per_output(source: Source, module: str, shape: tuple[int, int]) -> Matrix:
    """8-bit `weight` and fp32 `weight_scale` [out, 1]; modules without a scale are not quantized."""
    if f"{module}.weight_scale" not in source:
        return source.take(f"{module}.weight", shape)
    integers = source.take(f"{module}.weight", shape, torch.int8)
    return Rounded(integers, source.take(f"{module}.weight_scale", (shape[0], 1), torch.float32)[:, 0], torch.float32)


@pytest.fixture
def format_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "per-output", lambda reported: per_output)


@pytest.fixture(params=["llama", "qwen3", "llama-tied"])
def pair(request: pytest.FixtureRequest, models: Models, tmp_path: Path, format_of_tests: None) -> Iterator[list[Path]]:
    """Two folders of equal weights: quantized, and as numbers."""
    folder, _ = models(request.param)
    config = json.loads((folder / "config.json").read_text())
    found = {name: _stored(name, tensor) for name, tensor in load_file(folder / "model.safetensors").items()}
    numbers = {name: value.weight if isinstance(value, Rounded) else value for name, value in found.items()}
    quantized: dict[str, Tensor] = {}
    for name, value in found.items():
        if isinstance(value, Rounded):
            quantized |= {name: value.integers, f"{name}_scale": value.scales[:, None].contiguous()}
        else:
            quantized[name] = value
    for place, tensors, more in (
        (tmp_path / "quantized", quantized, {"quantization_config": {"quant_method": "per-output"}}),
        (tmp_path / "numbers", numbers, {}),
    ):
        place.mkdir()
        save_file(tensors, place / "model.safetensors")
        (place / "config.json").write_text(json.dumps(config | more))
    yield [tmp_path / "quantized", tmp_path / "numbers"]


def _stored(name: str, tensor: Tensor) -> Matrix:
    """The MLP of layer 1 is left as it is, as formats leave modules out."""
    return rounded(tensor) if "_proj.weight" in name and "layers.1.mlp" not in name else tensor


def load(folder: Path, kernels: Kernels = REFERENCES) -> Decoder:
    config = parse_config({"model": {"path": str(folder), "dtype": "float32"}, "engine": {"kv_tokens": 512}})
    model = read_model_config(folder)
    target = load_target(config, model, plan_sizes(config, model), kernels=kernels)
    assert isinstance(target, Decoder)
    return target


def test_a_format_is_one_reader(pair: list[Path], kernels: Kernels) -> None:
    """Merged and reordered rows stand for the weights of the same checkpoint without quantization."""
    quantized, numbers = (load(folder, kernels) for folder in pair)
    for one, other in zip(quantized.body.stack.matrices, numbers.body.stack.matrices, strict=True):
        torch.testing.assert_close(one.weight, other.weight, atol=1e-6, rtol=1e-6)
        x = torch.randn(3, one.shape[1])
        torch.testing.assert_close(one(x), other(x), atol=1e-5, rtol=1e-4)
    assert quantized.bytes < numbers.bytes


def test_tensors_that_the_reader_does_not_take_are_named(pair: list[Path]) -> None:
    path = pair[0] / "model.safetensors"
    save_file(load_file(path) | {"model.layers.0.self_attn.q_proj.input_scale": torch.ones(1)}, path)
    with pytest.raises(ConfigError, match=r"1 unexpected tensors.*q_proj\.input_scale"):
        load(pair[0])


def test_an_unknown_format_is_refused_by_name(pair: list[Path]) -> None:
    config = json.loads((pair[1] / "config.json").read_text()) | {"quantization_config": {"quant_method": "odd"}}
    (pair[1] / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ConfigError, match="is quantized, with quant_method 'odd'; the native engine runs fp8, per-output"
    ):
        load(pair[1])


def test_projections_are_made_in_one_place() -> None:
    """So that a format, a precision or a layout reaches all of them."""
    calls = {
        source.place
        for source in sources()
        if source.room in ("engine", "spec", "native")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Projection"
    }
    assert calls == {"engine/model/parts.py"}

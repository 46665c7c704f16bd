"""Every tensor of a checkpoint is used once or named in an error."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from aerie.contracts.config import parse_config
from aerie.contracts.errors import ConfigError
from aerie.engine.build import load_target
from aerie.engine.memory import plan_sizes
from aerie.engine.model.config import read_model_config
from aerie.engine.model.decoder import Decoder
from aerie.engine.model.weights import Weights

Models = Callable[[str], tuple[Path, Any]]
Tensors = dict[str, torch.Tensor]


def load(folder: Path) -> Decoder:
    config = parse_config({"model": {"path": str(folder), "dtype": "float32"}, "engine": {"kv_tokens": 512}})
    model = read_model_config(folder)
    return load_target(config, model, plan_sizes(config, model))


@pytest.fixture
def altered(models: Models, tmp_path: Path) -> Callable[[Callable[[Tensors], Any]], Path]:
    """A copy of the tiny Llama whose tensors a test has changed."""

    def alter(change: Callable[[Tensors], Any]) -> Path:
        folder, _ = models("llama")
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
        return tmp_path

    return alter


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.3.mlp.up_proj.weight", "lm_head.weight"])
def test_a_missing_tensor_is_named(altered: Callable[..., Path], name: str) -> None:
    folder = altered(lambda tensors: tensors.pop(name))
    with pytest.raises(ConfigError, match=f"{name}.* is missing"):
        load(folder)


def test_an_unexpected_tensor_is_named(altered: Callable[..., Path]) -> None:
    folder = altered(lambda tensors: tensors.update({"model.layers.0.self_attn.sinks": torch.zeros(4)}))
    with pytest.raises(ConfigError, match=r"1 unexpected tensors.*self_attn\.sinks"):
        load(folder)


def test_a_wrong_shape_is_named_with_both_shapes(altered: Callable[..., Path]) -> None:
    folder = altered(lambda tensors: tensors.update({"model.norm.weight": torch.zeros(63)}))
    with pytest.raises(ConfigError, match=r"model\.norm\.weight.*\(63,\).*\(64,\)"):
        load(folder)


def test_shards_load_as_the_whole(models: Models, tmp_path: Path) -> None:
    folder, model = models("llama")
    model.save_pretrained(tmp_path, max_shard_size="200KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    whole, sharded = load(folder), load(tmp_path)
    assert torch.equal(whole.embeddings, sharded.embeddings)
    assert torch.equal(whole.output_weight, sharded.output_weight)
    assert whole.bytes == sharded.bytes


def test_a_missing_shard_is_named(models: Models, tmp_path: Path) -> None:
    models("llama")[1].save_pretrained(tmp_path, max_shard_size="200KB")
    lost = sorted(tmp_path.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(ConfigError, match=lost.name):
        load(tmp_path)


def test_a_tensor_in_two_shards_is_refused(models: Models, tmp_path: Path) -> None:
    tensors = load_file(models("llama")[0] / "model.safetensors")
    for name in ("a.safetensors", "b.safetensors"):
        save_file(tensors, tmp_path / name)
    index = {"weight_map": dict(zip(tensors, ["a.safetensors", "b.safetensors"] * len(tensors), strict=False))}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match="twice"):
        Weights(tmp_path, torch.float32)


def test_a_damaged_file_is_named(altered: Callable[..., Path]) -> None:
    folder = altered(lambda tensors: None)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ConfigError, match=r"model\.safetensors is not a readable"):
        load(folder)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(ConfigError, match="pickled"):
        Weights(tmp_path, torch.float32)


def test_a_tied_checkpoint_may_carry_its_output_weight_too(models: Models, tmp_path: Path) -> None:
    folder, _ = models("llama-tied")
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    target = load(tmp_path)
    assert torch.equal(target.output_weight, target.embeddings)

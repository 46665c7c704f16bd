"""Shapes with random weights as GGUF: as many numbers as Aerie's own target takes, in the same precision."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from aerie.engine.model.dummy_weights import DummyWeights
from tests.house import HOME

gguf = pytest.importorskip("gguf")
CONFIG = json.loads((HOME / "configs/shape/llama-1b/target/config.json").read_text())
TINY = CONFIG | {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 128}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512}


@pytest.fixture
def shaped(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(HOME / "scripts/peers"))
    return importlib.import_module("llama_shape")


@pytest.mark.parametrize("tied", [True, False])
def test_both_sides_have_the_same_tensors(
    shaped: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: bool
) -> None:
    config = TINY | {"tie_word_embeddings": tied}
    (tmp_path / "config.json").write_text(json.dumps(config))
    taken: dict[str, tuple[int, ...]] = {}
    take = DummyWeights.take

    def noted(self: DummyWeights, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
        taken[name] = shape
        return take(self, name, shape, dtype)

    monkeypatch.setattr(DummyWeights, "take", noted)
    from aerie.worker import build_worker

    build_worker(shaped.config_of(tmp_path, "int8", threads=1, rows=2))
    assert shaped.tensors_of(config) == taken


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_matrices_have_the_precision_that_is_asked_for(shaped: ModuleType, tmp_path: Path, precision: str) -> None:
    shaped.write_gguf(TINY, tmp_path / "tiny.gguf", shaped.KINDS[precision])
    tensors = gguf.GGUFReader(tmp_path / "tiny.gguf").tensors
    assert len(tensors) == len(shaped.tensors_of(TINY))
    assert {tensor.tensor_type for tensor in tensors if "norm" not in tensor.name} == {shaped.KINDS[precision]}

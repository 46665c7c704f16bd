"""The peer around generate: requests of one batch get what each would get alone, and end at their own limits."""

import argparse
import importlib.util
import shutil
import threading
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.bench.test_sweep import HOME


@pytest.fixture(scope="module")
def server() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peer", HOME / "scripts/peers/transformers_server.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tmp_path_factory.mktemp("peer") / "tiny"
    shutil.copytree(HOME / "models/demo/target", model, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 4096}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 2, "eos_token_id": 1}
    LlamaForCausalLM(LlamaConfig(**sizes, **heads)).save_pretrained(model)
    return model


def answers(server: ModuleType, generator: object, asked: list[tuple[list[int], int]]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in asked]
    ended = [threading.Event() for _ in asked]

    def tell(number: int):
        return lambda token: ended[number].set() if token is None else found[number].append(token)

    batch = [server.Asked(ids, limit, 0.0, False, tell(number)) for number, (ids, limit) in enumerate(asked)]
    generator._generate(batch)  # type: ignore[attr-defined]
    assert all(event.is_set() for event in ended), "each is told its end once"
    return found


def test_a_batch_answers_as_each_would_be_answered_alone(server: ModuleType, tiny: Path) -> None:
    given = argparse.Namespace(model=str(tiny), dtype="float32", compile=False, max_batch=4)
    generator = server.Generator(given)
    asked = [([0, 5, 9], 7), ([0, 4, 8, 15, 16, 23, 42], 3), ([0, 11], 1)]
    together = answers(server, generator, asked)
    assert [len(own) for own in together] == [7, 3, 1]
    assert together == [answers(server, generator, [one])[0] for one in asked]


def test_shapes_are_few_where_each_is_compiled(server: ModuleType, tiny: Path) -> None:
    generator = server.Generator(argparse.Namespace(model=str(tiny), dtype="float32", compile=False, max_batch=4))
    generator._compile = True
    batch = [server.Asked([0] * count, 9, 0.0, False, lambda token: None) for count in (3, 5, 70)]
    ids, mask = generator._padded(batch)
    assert ids.shape == (4, 128) and mask.sum(1).tolist() == [3, 5, 70, 1] and generator._padded_to_grain(9) == 64

"""What `engine.kind: sglang-model` says where SGLang is missing or another; the rest is tested beside SGLang itself."""

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from aerie.contracts.config import parse_config
from aerie.contracts.errors import ConfigError
from aerie.engine.attention.cpu import CpuAttention
from aerie.engine.build import read_target


def read() -> None:
    read_target(parse_config({"engine": "sglang-model", "model": {"path": str(Path("models/demo/target"))}}))


def test_without_sglang_the_way_to_get_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ConfigError, match="make setup-sglang") as error:
        read()
    assert error.value.param == "engine.kind"


@pytest.mark.parametrize("release", ["0.5.17", "0.6.0"])
def test_another_release_is_named_beside_the_one_that_is_served(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: release)
    with pytest.raises(ConfigError, match=rf"SGLang {release} is installed.*sglang-model runs on 0\.5\.23"):
        read()


def test_the_pinned_release_needs_no_import_to_read_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "0.5.23")
    config = parse_config({"engine": "sglang-model", "model": {"path": "models/demo/target"}})
    native = read_target(parse_config({"model": {"path": "models/demo/target"}}))
    shape = read_target(config)
    for name in ("hidden_size", "layers", "heads", "kv_heads", "head_dim", "vocabulary", "max_positions", "end_ids"):
        assert getattr(shape, name) == getattr(native, name)


def test_memory_is_planned_for_all_experts(tmp_path: Path) -> None:
    from aerie.engine.sglang.shapes import read_shape

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    others = {"vocab_size": 300, "max_position_embeddings": 256, "num_experts": 8, "moe_intermediate_size": 48}
    (tmp_path / "config.json").write_text(json.dumps(sizes | others | {"architectures": ["Qwen3MoeForCausalLM"]}))
    shape = read_shape(tmp_path)
    assert (shape.intermediate_size, shape.kv_heads, shape.head_dim) == (8 * 48, 4, 16)


def test_a_head_of_sglangs_layers_runs_on_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    from aerie.engine.sglang import place
    from aerie.engine.sglang.build import load_sglang_draft
    from aerie.engine.state.kv_pool import KVPool

    monkeypatch.setattr(place, "_taken", place.Place(rank=1, ranks=2))
    pool = KVPool(layers=1, pages=2, page_size=4, kv_heads=1, head_dim=4, dtype=torch.float32)
    with pytest.raises(ConfigError, match=r"one rank here; sglang\.tp is 2"):
        load_sglang_draft(Path("head"), torch.zeros(4, 4), pool, CpuAttention())


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"pp": 2}, "sglang.pp is 2.*sglang.tp on one machine only"),
        ({"nnodes": 2}, "sglang.nnodes is 2.*engine.kind=sglang"),
        ({"node_rank": 1}, "sglang.node_rank is 1.*does not read it"),
        ({"dist_init_addr": "h:1"}, "sglang.dist_init_addr is h:1.*does not read it"),
        ({"memory": 0.5}, r"sglang.memory is 0\.5.*engine.memory_share"),
        ({"tp": 3}, "sglang.tp is 3; the model's . heads and . KV heads cannot be shared evenly"),
    ],
)
def test_ranks_that_the_model_layer_does_not_have_are_refused(
    setting: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "0.5.23")
    config = parse_config({"engine": "sglang-model", "model": {"path": "models/demo/target"}, "sglang": setting})
    with pytest.raises(ConfigError, match=says) as error:
        read_target(config)
    assert error.value.param == f"sglang.{next(iter(setting))}"

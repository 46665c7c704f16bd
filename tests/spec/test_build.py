"""From a config to a worker: which head is found, what is reported, and which shapes are refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from aerie.contracts.config import Config, parse_config
from aerie.contracts.errors import ConfigError
from aerie.engine.model.config import ModelConfig, read_model_config
from aerie.engine.step.plain_worker import PlainWorker
from aerie.native.kernels.table import cpp_kernels
from aerie.spec.build import build_worker, find_head, reserved_slots
from aerie.spec.checkpoints.registry import FOLDER, Pair, head_of, read_pairs
from aerie.spec.drafters.eagle3 import scratch_slots
from aerie.spec.worker import SpecWorker
from tests.house import HOME
from tests.native.cpp_here import needs_cpp
from tests.spec import models


def config_of(target: Path | str, **spec: Any) -> Config:
    return parse_config({"model": {"path": str(target)}, "engine": {"kv_tokens": 1024}, "spec": spec})


@needs_cpp
def test_a_head_is_held_in_eight_bits_where_the_cpu_s_kernels_are(target_folder: Path, head_folder: Path) -> None:
    whole, eight = (
        build_worker(config_of(target_folder, head=str(head_folder), quantization=bits), cpp_kernels()).capacity.report[
            "head_bytes"
        ]
        for bits in ("none", "auto")
    )
    assert int(str(eight)) < int(str(whole)) / 2


def test_eight_bits_without_the_kernels_are_refused(target_folder: Path, head_folder: Path) -> None:
    config = config_of(target_folder, head=str(head_folder), quantization="int8")
    config = config.model_copy(update={"engine": config.engine.model_copy(update={"kernels": "torch"})})
    with pytest.raises(ConfigError, match=r"spec\.quantization is int8.*not in use here; set spec\.quantization=auto"):
        build_worker(config)


def pair(**changes: Any) -> Pair:
    sizes = {"architecture": "LlamaForCausalLM", "hidden_size": 32, "layers": 8, "vocabulary": 64}
    return Pair.model_validate({"targets": ["org/tiny"], "sizes": sizes, "head": "org/tiny-head"} | changes)


def test_a_head_is_reported_with_its_share_of_the_target(target_folder: Path, head_folder: Path) -> None:
    worker = build_worker(
        config_of(target_folder, head=str(head_folder), depth=3, topk=4, nodes=9, quantization="none")
    )
    assert isinstance(worker, SpecWorker)
    capacity, report = worker.capacity, worker.capacity.report
    assert capacity.drafts and capacity.reserve == 9
    assert report["head_taps"] == "2, 4, 5" and report["head_format"] == "specforge"
    held = sum(tensor.numel() for tensor in models.head_tensors(draft_vocabulary=32).values())
    assert report["head_bytes"] == held * 4
    assert report["head_share"] == pytest.approx(held * 4 / int(str(report["target_bytes"])), abs=1e-4)
    assert report["head_kv_bytes"] == 2 * capacity.pages * 16 * models.KV_HEADS * models.HEAD_DIM * 4


def test_none_and_unknown_targets_are_served_plainly(target_folder: Path) -> None:
    for head in ("none", "auto"):
        worker = build_worker(config_of(target_folder, head=head))
        assert isinstance(worker, PlainWorker) and not worker.capacity.drafts


def test_a_head_that_is_nowhere_is_an_error(target_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"spec\.head is 'nobody/nothing'.*download"):
        build_worker(config_of(target_folder, head="nobody/nothing"))


def test_a_head_of_another_target_is_an_error_before_anything_is_allocated(tmp_path: Path, head_folder: Path) -> None:
    target = models.write_target(tmp_path, vocabulary=96)
    with pytest.raises(ConfigError, match="vocabulary 64, the target has 96"):
        build_worker(config_of(target, head=str(head_folder)))


@pytest.mark.parametrize(
    ("spec", "reserve"),
    [
        ({"depth": 4, "nodes": 5}, 5),
        ({"depth": 6, "topk": 4, "nodes": 16}, 20),
        ({"depth": 0, "nodes": 1}, 1),
        ({"depth": 5, "nodes": 2}, 6),
        ({"by_load": [{"rows": 1, "depth": 5, "topk": 4, "nodes": 32}, {"rows": 8, "depth": 2, "nodes": 3}]}, 32),
        ({"depth": 9, "topk": 8, "nodes": 64}, 64),
    ],
)
def test_the_reserve_covers_nodes_scratch_and_pairs(spec: dict[str, Any], reserve: int) -> None:
    assert reserved_slots(config_of("x", **spec).spec, scratch_slots) == reserve


def test_scratch_beyond_one_word_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"70 scratch slots a row at topk 10 and depth 8; at most 64 fit"):
        reserved_slots(config_of("x", depth=8, topk=10, nodes=64).spec, scratch_slots)
    with pytest.raises(ConfigError, match=r"spec\.by_load\[1\]"):
        shapes = [{"rows": 1, "depth": 1, "nodes": 2}, {"rows": 2, "depth": 20, "topk": 4, "nodes": 9}]
        reserved_slots(config_of("x", by_load=shapes).spec, scratch_slots)


def test_a_pair_is_found_by_name_and_sizes(target_folder: Path) -> None:
    model = read_model_config(target_folder)
    assert head_of(["org/tiny"], model, [pair()]) == "org/tiny-head"
    assert head_of(["/cache/models--org--tiny/snapshots/abc"], model, [pair()]) == "org/tiny-head"
    assert head_of([str(target_folder)], model, [pair(targets=[str(target_folder)])]) == "org/tiny-head"
    assert head_of(["org/other"], model, [pair()]) is None
    wrong = pair(sizes={"architecture": "LlamaForCausalLM", "hidden_size": 64, "layers": 8, "vocabulary": 64})
    assert head_of(["org/tiny"], model, [wrong]) is None


def test_sizes_alone_suffice_only_where_a_pair_says_so(target_folder: Path) -> None:
    model = read_model_config(target_folder)
    assert head_of(["a/copy"], model, [pair(by_sizes=True)]) == "org/tiny-head"
    assert head_of(["a/copy"], model, [pair(by_sizes=True), pair(by_sizes=True, head="b")]) is None


def test_every_shipped_pair_is_well_formed_and_the_demo_is_found() -> None:
    pairs = read_pairs()
    assert len(pairs) == len(list(FOLDER.glob("*.yaml"))) >= 5
    names = [target for one in pairs for target in one.targets]
    assert len(names) == len(set(names))
    model = read_model_config(HOME / "models/demo/target")
    assert isinstance(model, ModelConfig)
    for path in ("models/demo/target", str(HOME / "models/demo/target")):
        assert find_head(config_of(path), model) == HOME / "models/demo/head"


def test_a_registered_head_that_is_not_there_is_told(
    target_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("aerie.spec.build.read_pairs", lambda: [pair(targets=[str(target_folder)], head="/gone/head")])
    assert find_head(config_of(str(target_folder)), read_model_config(target_folder)) is None
    assert "decoding without speculation: the registered head, /gone/head, is not on this machine" in caplog.text


def test_a_missing_registry_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"registry of heads, .*gone, is missing"):
        read_pairs(tmp_path / "gone")


def test_a_pair_s_folders_are_relative_to_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heads").mkdir()
    (tmp_path / "target").mkdir()
    data = pair(targets=["../target", "org/tiny"], head="../head").model_dump(mode="json")
    (tmp_path / "heads/one.yaml").write_text(yaml.safe_dump(data))
    [found] = read_pairs(tmp_path / "heads")
    assert found.targets == (str(tmp_path / "target"), "org/tiny") and found.head == str(tmp_path / "head")


@pytest.mark.parametrize("content", ["targets: [a]", "[1, 2]", "targets: [a\nhead", "extra: 1"])
def test_a_malformed_pair_names_its_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "odd.yaml").write_text(content)
    with pytest.raises(ConfigError, match=r"odd\.yaml"):
        read_pairs(tmp_path)


def test_pairs_are_read_from_any_folder(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(pair().model_dump(mode="json")))
    assert read_pairs(tmp_path) == [pair()]

"""Training: the same bytes whoever computes the features and however often it is killed; refusals by name."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tensorboardX.proto.event_pb2 import Event

from aerie.contracts.errors import AerieError, ConfigError
from aerie.train.heads.objectives import OBJECTIVES
from aerie.train.optimization.schedule import warm_cosine
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.data.lines import read_own
from aerie.train.pipeline.data.served import OutputEnd
from aerie.train.pipeline.data.shards import read_index
from aerie.train.pipeline.features import make_features
from aerie.train.pipeline.fit import train_head
from aerie.train.pipeline.fitting.initial import first_head
from aerie.train.pipeline.folder import discard
from aerie.train.pipeline.vocabulary import choose_vocabulary, read_vocabulary
from tests.train.pipeline.tiny import changed, run_to, tree_bytes


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "head/model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_metrics_are_told_by_depth(shared: PipelineConfig) -> None:
    folder = run_to(shared, "train")
    lines = list(read_own(folder / "metrics.jsonl"))
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    for line in lines:
        accuracies = line["conditional_accuracy"]
        assert len(accuracies) == 3 and all(0 <= one <= 1 for one in accuracies) and line["loss"] > 0
        assert line["acceptance_length"] == pytest.approx(
            1 + sum(float(torch.tensor(accuracies[:k]).prod()) for k in (1, 2, 3)), abs=1e-4
        )
    assert lines[0]["rate"] == pytest.approx(1e-3) and lines[-1]["rate"] < 0.5e-3


def test_tensorboard_gets_the_same_figures(shared: PipelineConfig) -> None:
    run_to(shared, "train")
    (path,) = (Path(shared.work) / "tensorboard").iterdir()
    data, tags = path.read_bytes(), set[str]()
    while data:  # length, its checksum, the event, its checksum
        size = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + size])
        tags |= {value.tag for value in event.summary.value}
        data = data[16 + size :]
    assert {"loss", "acceptance_length", "conditional_accuracy/1", "conditional_accuracy/3", "rate"} <= tags


def test_online_features_train_the_same_head(shared: PipelineConfig, answered: PipelineConfig) -> None:
    offline = run_to(shared, "train")
    online = changed(answered, features={"mode": "online"})
    folder = run_to(online, "train")
    index = read_index(Path(online.work) / "features")
    assert index.mode == "online" and sum(entry.bytes for entry in index.shards) < 50_000
    assert same(weights(folder), weights(offline))
    assert (folder / "metrics.jsonl").read_bytes() == (offline / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    "settings",
    [
        *({"loss": name} for name in OBJECTIVES if name != "cross_entropy"),
        {"tap_norms": True, "norm_output": True},
        {"norm_before_residual": True},
        {"optimizer": "muon"},
        {"precision": "bfloat16"},
        {"accumulate": 2, "epochs": 2, "steps": None},
    ],
    ids=str,
)
def test_each_switch_trains_another_head(
    shared: PipelineConfig, ready: PipelineConfig, settings: dict[str, Any]
) -> None:
    plain = weights(run_to(shared, "train"))
    folder = run_to(changed(ready, train={"steps": 2} | settings), "train")
    found = weights(folder)
    assert not same(found, plain) and all(bool(torch.isfinite(tensor.float()).all()) for tensor in found.values())
    masters = load_file(folder / "checkpoint/weights.safetensors")
    moments = load_file(folder / "checkpoint/optimizer-0.safetensors")
    assert {tensor.dtype for tensor in (*masters.values(), *moments.values())} == {torch.float32}
    assert ("fc_norm.0.weight" in found) == bool(settings.get("tap_norms"))


def test_a_finished_stage_is_never_written_over(ready: PipelineConfig) -> None:
    folder = train_head(ready)
    before = tree_bytes(folder)
    with pytest.raises(AerieError, match=r"finished and is never written over"):
        train_head(ready)
    with pytest.raises(AerieError, match=r"made with another depth .*3, now 2"):
        train_head(changed(ready, train={"depth": 2}))
    assert tree_bytes(folder) == before


def test_features_of_another_template_target_or_set_of_taps_are_refused(ready: PipelineConfig, tmp_path: Path) -> None:
    (tmp_path / "other.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(AerieError, match=r"another chat template"):
        train_head(changed(ready, template=str(tmp_path / "other.jinja")))
    with pytest.raises(AerieError, match=r"another set of taps .*\[2, 4, 5\]; the config's is \[1, 3, 6\]"):
        train_head(changed(ready, features={"taps": [1, 3, 6]}))
    with pytest.raises(AerieError, match=r"another target"):
        train_head(changed(ready, target=str(other_target(ready, tmp_path))))
    discard(Path(ready.work), "features")
    make_features(changed(ready, features={"longest": 40}))
    with pytest.raises(AerieError, match=r"chosen from other features"):
        train_head(changed(ready, features={"longest": 40}))


def other_target(config: PipelineConfig, folder: Path) -> Path:
    other = folder / "other"
    shutil.copytree(config.target, other)
    tensors = load_file(other / "model.safetensors")
    tensors["model.norm.weight"] += 0.5
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    return other


@pytest.mark.parametrize("start", ["random", "target"])
def test_a_new_head_has_the_target_s_output_and_its_last_layer_if_asked(start: str, ready: PipelineConfig) -> None:
    work, end = Path(ready.work), OutputEnd(Path(ready.target))
    index, vocabulary = read_index(work / "features"), read_vocabulary(work / "vocabulary", end.model.vocabulary)
    head = first_head(changed(ready, train={"start": start}).train, 0, end, index, vocabulary)
    weights = load_file(Path(ready.target) / "model.safetensors")
    assert torch.equal(head.norm.weight, weights["model.norm.weight"].float())
    layer = weights[f"model.layers.{end.model.layers - 1}.self_attn.o_proj.weight"].float()
    assert torch.equal(head.midlayer.self_attn.o_proj.weight, layer) is (start == "target")


def test_training_goes_on_from_a_head_that_belongs_here(shared: PipelineConfig, ready: PipelineConfig) -> None:
    exported = run_to(shared, "export") / "specforge"
    work, end = Path(ready.work), OutputEnd(Path(ready.target))
    index, vocabulary = read_index(work / "features"), read_vocabulary(work / "vocabulary", end.model.vocabulary)
    stage = changed(ready, train={"start_from": str(exported)}).train
    head = first_head(stage, 0, end, index, vocabulary)
    kept = load_file(exported / "model.safetensors")
    assert all(torch.equal(weight.bfloat16(), kept[name]) for name, weight in head.named_parameters())
    assert run_to(changed(ready, train={"start_from": str(exported), "steps": 1}), "train").exists()


def test_a_head_of_another_vocabulary_template_or_set_of_taps_is_refused(
    shared: PipelineConfig, ready: PipelineConfig, tmp_path: Path
) -> None:
    exported, work = run_to(shared, "export") / "specforge", Path(ready.work)
    from_it = {"start_from": str(exported), "steps": 1}
    discard(work, "vocabulary")
    smaller = changed(ready, vocabulary={"size": 200}, train=from_it)
    choose_vocabulary(smaller)
    with pytest.raises(ConfigError, match=r"another draft vocabulary \(300 ids, here 200\)"):
        train_head(smaller)
    for stage in ("features", "vocabulary", "train"):
        discard(work, stage)
    tapped = changed(ready, features={"taps": [1, 3, 6]}, train=from_it)
    with pytest.raises(ConfigError, match=r"another set of taps .* it has \[2, 4, 5\], here it is \[1, 3, 6\]"):
        run_to(tapped, "train")
    discard(work, "train")
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((exported / name).read_bytes())
    with pytest.raises(ConfigError, match=r"no card"):
        run_to(changed(tapped, train={"start_from": str(bare)}), "train")
    discard(work, "train")
    card = (exported / "README.md").read_text()
    reported = yaml.safe_load(card.split("---\n")[1])["aerie"]["chat_template"]
    (bare / "README.md").write_text(card.replace(reported, "0" * 64))
    with pytest.raises(ConfigError, match=r"another chat template"):
        run_to(changed(tapped, train={"start_from": str(bare)}), "train")


def test_the_rate_rises_and_falls_as_a_cosine() -> None:
    rates = [warm_cosine(step, steps=100, warmup=0.1) for step in range(100)]
    assert rates[:10] == pytest.approx([n / 10 for n in range(1, 11)])
    assert rates[10] == 1.0 and rates[55] == pytest.approx(0.5) and 0 < rates[-1] < 0.001
    assert warm_cosine(0, steps=1, warmup=0.0) == 1.0


def test_the_manifest_names_what_training_read(shared: PipelineConfig) -> None:
    manifest = json.loads((run_to(shared, "train") / "manifest.json").read_text())
    assert set(manifest["inputs"]) == {"features", "vocabulary", "target"}
    assert manifest["config"]["depth"] == 3 and manifest["counts"]["steps"] == 4

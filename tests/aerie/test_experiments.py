"""Experiments from a config to results, on a tiny pair, measured in the real engine; killed, they go on."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from aerie.experiments import app, load_proxy
from aerie.train.demo.config import Pretraining
from aerie.train.demo.model import export, fresh_model
from tests.train.conftest import run
from tests.train.demo.conftest import words
from tests.train.pipeline.tiny import ENGINE, answered_in_place

__all__ = ["run", "words"]

ARMS = [
    {"name": "feature", "taps": "top", "loss": "feature", "depth": 2, "rows": "frozen", "answers": 4},
    {"name": "bare", "alone": True, "mask": "stale", "template": "none", "depth": 2, "answers": 4, "loss": "lk_alpha"},
    {"name": "peagle", "alone": True, "kind": "peagle", "depth": 3, "layers": 2, "answers": 4, "tasks": ["counting"]},
]


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Pretraining, words: PreTrainedTokenizerFast) -> Path:
    """A random target on tasks, a proxy of two updates, and one experiment."""
    monkeypatch.setattr("aerie.experiments.served_target", answered_in_place)
    monkeypatch.setattr("aerie.train.pipeline.evaluate.draw_evaluation", lambda *_: None)
    wide = run.architecture.model_copy(update={"num_hidden_layers": 8, "max_position_embeddings": 2048})
    torch.manual_seed(0)
    export(fresh_model(wide, words), words, tmp_path / "target")
    folder = tmp_path / "configs"
    folder.mkdir()
    proxy = {
        "target": str(tmp_path / "target"),
        "work": str(tmp_path / "work"),
        "pretrain": run.model_dump(mode="json") | {"shares": {"counting": 1, "stories": 1}},
        "prompts": {"drawn": 6},
        "filter": {"near_duplicate": 1, "overlap_words": 1000, "personal": []},
        "respond": {"temperatures": [0.8], "max_tokens": 6},
        "features": {"longest": 256},
        "vocabulary": {"size": len(words)},
        "train": {"optimizer": "muon", "rate": 0.01, "steps": 2, "tokens": 96, "intermediate_size": 48},
        "evaluate": {"drawn": 2, "shapes": ["3,1,4"], "temperatures": [0.8], "max_tokens": 5, "settings": [*ENGINE]},
    }
    (folder / "proxy.yaml").write_text(yaml.safe_dump(proxy))
    reported = {"name": "tiny", "claim": "it runs", "arms": ARMS, "seeds": [0]}
    reported |= {"speed": {"depths": [3], "concurrency": [1, 2], "rounds": 2, "answers": 1}}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(reported))
    return folder


def test_an_experiment_is_trained_measured_killed_and_gone_on_with(
    configs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--configs", str(configs), "--results", str(tmp_path / "results"), "--least-exact", "0"]
    trained: list[str] = []
    from aerie.train.experiments import table

    right = table.train_arm

    def counted(config: Any, arm: Any) -> Path:
        if arm.name == "peagle" and not trained.count("peagle"):
            trained.append("peagle")
            raise KeyboardInterrupt
        folder = right(config, arm)
        trained.append(f"{arm.name} {(folder / 'train/metrics.jsonl').stat().st_mtime_ns}")
        return folder

    monkeypatch.setattr(table, "train_arm", counted)
    killed = CliRunner().invoke(app, words)
    assert killed.exit_code != 0 and not (tmp_path / "results").exists()
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert trained[:2] == trained[3:5], "the first two were trained once"
    results = json.loads((tmp_path / "results/tiny.json").read_text())
    assert {row["arm"] for row in results["means"]} == {arm["name"] for arm in ARMS}
    lengths = [row for row in results["means"] if "acceptance_length" in row]
    assert {row["task"] for row in lengths} == {"counting", "stories", "mixed", "all"} and len(lengths) == 3 * 4
    for row in lengths:
        assert 1 <= row["acceptance_length_lower"] <= row["acceptance_length"] + 1e-3
        assert row["acceptance_length"] <= row["acceptance_length_upper"] + 1e-3 <= 4.001
    speeds = [cell for cell in results["cells"] if "tokens_per_s" in cell]
    assert len(speeds) == 3 * 2 * 2 and all(cell["seed"] == 0 and cell["over_plain"] > 0 for cell in speeds)
    assert all(cell["over_plain"] == 1 for cell in speeds if cell["depth"] == 0)
    assert results["target"]["exact"] == {"counting": 0, "stories": 0} and results["provenance"]["commit"]
    assert (tmp_path / "results/tiny.png").exists()
    kept = CliRunner().invoke(app, words)
    assert "kept" in kept.output and len(trained) == 6
    others = CliRunner().invoke(app, [*words, "export.name=Another"])
    assert others.exit_code == 0 and "is written" in others.output, "results of another config are made again"
    assert len(trained) == 9 and trained[6:] == trained[3:6], "from the same heads"


def test_a_target_that_does_not_know_the_tasks_is_refused(configs: Path, tmp_path: Path) -> None:
    words = ["--configs", str(configs), "--results", str(tmp_path / "results")]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 2 and "0% of its answers" in refused.stderr and "need 60%" in refused.stderr
    strange = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    shutil.copytree(tmp_path / "target", tmp_path / "other")
    strange.save_pretrained(tmp_path / "other")
    other = CliRunner().invoke(app, [*words, f"target={tmp_path}/other"])
    assert other.exit_code == 2 and "its tokenizer lacks" in other.stderr and "<tool_call>" in other.stderr
    missing = CliRunner().invoke(app, [*words, f"target={tmp_path}/none"])
    assert missing.exit_code == 2 and f"no target in {tmp_path}/none" in missing.stderr


def test_an_unknown_experiment_is_named(configs: Path) -> None:
    refused = CliRunner().invoke(app, ["hope", "--configs", str(configs)])
    assert refused.exit_code == 2 and "hope" in refused.stderr and "tiny" in refused.stderr


def test_heads_of_other_code_are_not_taken(configs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = load_proxy(configs, []).work
    assert work == load_proxy(configs, []).work
    asked: list[set[str]] = []

    def changed(rooms: Any) -> dict[str, str]:
        asked.append(set(rooms))
        return {"train": "changed"}

    monkeypatch.setattr("aerie.bench.origin.digests", changed)
    assert load_proxy(configs, []).work != work
    assert {"train", "engine", "spec"} <= asked[0] and not any(room.startswith("scheduler") for room in asked[0])

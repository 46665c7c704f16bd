"""Experiments from a config to results, on a tiny pair, measured in the real engine; killed, they go on."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from aerie.experiments import _answers, app
from aerie.train.experiments.config import load_experiment, load_proxy

ARCHITECTURE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 8, "num_attention_heads": 2}
ARMS = [
    {"name": "top + feature loss", "taps": "top", "loss": "feature", "depth": 1, "rows": "frozen", "answers": 8},
    {"name": "stale", "mask": "stale", "template": "none", "depth": 2, "answers": 8, "loss": "lk_alpha"},
    {"name": "peagle", "kind": "peagle", "depth": 3, "layers": 2, "answers": 8, "domains": ["prose"]},
]


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped proxy, made tiny, and one experiment."""
    monkeypatch.setattr("aerie.train.experiments.proxy._CHUNK", 8)
    folder = tmp_path / "configs"
    folder.mkdir()
    proxy: dict[str, Any] = yaml.safe_load(Path("configs/train/experiments/proxy.yaml").read_text())
    proxy["pretrain"] |= {"steps": 2, "vocabulary": 400}
    proxy["pretrain"] |= {"tokens_per_batch": 128, "longest": 64, "threads": 1, "checkpoint_every": 2}
    proxy["pretrain"]["architecture"] |= ARCHITECTURE | {"num_key_value_heads": 1, "head_dim": 16}
    proxy |= {"work": str(tmp_path / "work"), "entries": 24, "sources": 6, "longest_text": 80, "draft_vocabulary": 300}
    proxy |= {"questions": 2, "max_tokens": 5, "threads": 1, "held_out": 0.4}
    (folder / "proxy.yaml").write_text(yaml.safe_dump(proxy))
    reported = {"name": "tiny", "claim": "it runs", "arms": ARMS, "seeds": [0], "steps": 2, "tokens_per_batch": 96}
    reported |= {"matrix_rate": 0.01, "vector_rate": 0.01, "shapes": ["3,1,4"], "temperatures": [1.0]}
    reported |= {"speed": {"depths": [3], "concurrency": [1, 2]}}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(reported))
    return folder


def test_an_experiment_is_trained_measured_killed_and_gone_on_with(
    configs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--configs", str(configs), "--results", str(tmp_path / "results")]
    trained: list[str] = []
    from aerie.train.experiments import table

    right = table.train_arm

    def counted(proxy: Any, pair: Any, experiment: Any, arm: Any, *rest: Any) -> None:
        if arm.name == "peagle" and not trained.count("peagle"):
            trained.append("peagle")
            raise KeyboardInterrupt
        trained.append(arm.name)
        right(proxy, pair, experiment, arm, *rest)

    monkeypatch.setattr(table, "train_arm", counted)
    killed = CliRunner().invoke(app, words)
    assert killed.exit_code != 0 and not (tmp_path / "results").exists()
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert trained == ["top + feature loss", "stale", "peagle", "peagle"]  # the first two once
    results = json.loads((tmp_path / "results/tiny.json").read_text())
    assert {row["arm"] for row in results["means"]} == {arm["name"] for arm in ARMS}
    lengths = [cell["acceptance_length"] for cell in results["cells"] if "acceptance_length" in cell]
    speeds = [cell for cell in results["cells"] if "tokens_per_s" in cell]
    assert len(lengths) == 3 * 2 and all(1 <= length <= 4 for length in lengths)
    assert len(speeds) == 3 * 2 * 2 and all(cell["tokens_per_s"] > 0 for cell in speeds)
    assert results["provenance"]["proxy"]["entries"] == 24 and results["provenance"]["commit"]
    assert (tmp_path / "results/tiny.png").exists()
    kept = CliRunner().invoke(app, words)
    assert "kept" in kept.output and len(trained) == 4
    proxy, experiment = load_proxy(configs / "proxy.yaml"), load_experiment(configs / "tiny.yaml")
    assert _answers(results, proxy, experiment)
    others = (proxy.model_copy(update={"parts": 3}), experiment), (proxy, experiment.model_copy(update={"steps": 99}))
    assert not any(_answers(results, *other) for other in others), "results of other configs are made again"


def test_an_unknown_experiment_is_named(configs: Path) -> None:
    refused = CliRunner().invoke(app, ["hope", "--configs", str(configs)])
    assert refused.exit_code == 2 and "hope" in refused.stderr and "tiny" in refused.stderr

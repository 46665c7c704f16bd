"""`aerie train`: stages by name, errors in one line, and the target served while it answers."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from aerie.commands.app import app
from aerie.contracts.errors import AerieError, ConfigError
from aerie.train.pipeline.config import PipelineConfig, load_pipeline
from aerie.train_engine import served_target
from tests.house import HOME
from tests.spec import models
from tests.train.pipeline.tiny import write_prompts


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    write_prompts(tmp_path / "prompts.jsonl", ["What is it?", "Who is there?"])
    data = {
        "target": str(tmp_path / "target"),
        "work": str(tmp_path / "work"),
        "prompts": {"sources": [{"path": str(tmp_path / "prompts.jsonl")}]},
        "vocabulary": {"size": 10},
        "evaluate": {"settings": ["engine.kv_tokens=4096", "model.dtype=float32"]},
    }
    path = tmp_path / "pipeline.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["train", *map(str, arguments)])
    if isinstance(result.exception, AerieError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_stage_runs_once_and_anew_only_when_asked(config_file: Path, tmp_path: Path) -> None:
    reported = invoke("prompts", config_file)
    assert json.loads(reported.replace("\n", " ").partition(" ")[2])["prompts"] == 2
    with pytest.raises(AerieError, match=r"never written over"):
        invoke("prompts", config_file)
    with pytest.raises(AerieError, match=r"made with another bad lines"):
        invoke("prompts", config_file, "prompts.bad_lines=3")
    invoke("prompts", config_file, "prompts.bad_lines=3", "--again")
    invoke("filter", config_file, "prompts.bad_lines=3")
    assert (tmp_path / "work/filter/manifest.json").exists()


def test_errors_say_what_to_do(config_file: Path) -> None:
    with pytest.raises(AerieError, match=r"'cook' is not a stage; stages are target, prompts, filter, .*, and all"):
        invoke("cook", config_file)
    with pytest.raises(AerieError, match=r"no output in .*run it first: aerie train prompts"):
        invoke("filter", config_file)
    with pytest.raises(ConfigError, match=r"no config at nowhere.yaml"):
        invoke("prompts", "nowhere.yaml")
    with pytest.raises(ConfigError, match=r"train.stepz: Extra inputs"):
        invoke("prompts", config_file, "train.stepz=3")
    with pytest.raises(AerieError, match=r"makes one stage anew"):
        invoke("all", config_file, "--again")


def test_shipped_pipelines_load() -> None:
    for path in (HOME / "configs/train").glob("pipeline*.yaml"):
        loaded = load_pipeline(path)
        assert all(Path(HOME / source.path).exists() for source in loaded.prompts.sources)
        assert all(Path(HOME / name).exists() for name in loaded.evaluate.tasks.values())


def test_a_target_that_cannot_be_served_says_why(config_file: Path, tmp_path: Path) -> None:
    models.write_target(tmp_path / "target")  # it has no tokenizer
    config: PipelineConfig = load_pipeline(config_file)
    with pytest.raises(AerieError, match=r"could not be served[\s\S]*tokenizer.json"), served_target(config):
        pass

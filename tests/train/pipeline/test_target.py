"""A pipeline that trains its target: first of all stages, kept as the others are, and asked what it was taught."""

import json
from pathlib import Path

import pytest

from aerie.contracts.errors import AerieError, ConfigError
from aerie.contracts.provenance import weights_hash
from aerie.engine.model.config import read_model_config
from aerie.spec.checkpoints.card import origin_of
from aerie.train.demo.config import Pretraining
from aerie.train.pipeline.config import PipelineConfig, load_pipeline
from aerie.train.pipeline.data.lines import read_own
from aerie.train.pipeline.filter import evaluation_prompts
from aerie.train.pipeline.folder import Finished
from aerie.train.pipeline.order import run_all, run_stage
from tests.house import HOME
from tests.train.pipeline.tiny import HELD_OUT, SURROUNDINGS, changed, tree_bytes, write_prompts


def test_one_recipe_makes_a_target_and_its_head(taught: PipelineConfig, run: Pretraining) -> None:
    work = run_all(taught, SURROUNDINGS).parent
    assert read_model_config(work / "target").layers == 8
    assert json.loads((work / "target/manifest.json").read_text())["config"]["steps"] == run.steps
    records = list(read_own(work / "prompts/prompts.jsonl"))
    assert len(records) >= 6 and {record["license"] for record in records} == {"PSF-2.0"}
    assert all(record["prompt_token_ids"] for record in records)
    cells = json.loads((work / "evaluate/evaluation.json").read_text())
    assert [(cell["task"], cell["prompts"]) for cell in cells] == [("counting", 2), ("mixed", 2)]
    origin = origin_of(work / "export/specforge")
    assert origin is not None and origin.target == weights_hash(work / "target")
    before = tree_bytes(work)
    run_all(taught, SURROUNDINGS)
    assert tree_bytes(work) == before
    with pytest.raises(Finished, match="--again"):
        run_stage("target", taught, SURROUNDINGS)


def test_what_is_not_trained_here_is_named(pipeline: PipelineConfig, taught: PipelineConfig) -> None:
    for config in (pipeline, changed(taught, target=pipeline.target)):
        with pytest.raises(AerieError, match="is not trained here; that takes a section pretrain and the target"):
            run_stage("target", config, SURROUNDINGS)
    with pytest.raises(ValueError, match=r"no prompts: name files in prompts\.sources"):
        changed(pipeline, prompts={"sources": []})
    with pytest.raises(ValueError, match="there is none"):
        changed(pipeline, prompts={"drawn": 3})


def test_a_head_that_the_target_could_not_have_is_refused_before_the_target_is_trained(taught: PipelineConfig) -> None:
    with pytest.raises(AerieError, match=r"vocabulary\.size is 701; the target has 700 ids"):
        run_all(changed(taught, vocabulary={"size": 701}), SURROUNDINGS)
    with pytest.raises(ConfigError, match=r"features\.taps is \[2, 8\]"):
        run_all(changed(taught, features={"taps": (2, 8)}), SURROUNDINGS)
    assert not Path(taught.work).exists()


def test_a_drawn_task_and_a_file_of_one_name_are_refused(taught: PipelineConfig, tmp_path: Path) -> None:
    run_stage("target", taught, SURROUNDINGS)
    own = write_prompts(tmp_path / "own.jsonl", HELD_OUT)
    twice = changed(taught, evaluate={"tasks": {"counting": str(own)}})
    with pytest.raises(AerieError, match=r"evaluate\.tasks has a file for counting"):
        evaluation_prompts(twice)


def test_a_file_may_lie_on_another(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(
        "target: a\nwork: b\nprompts: {sources: [{path: c}]}\nvocabulary: {size: 3}\ntrain: {depth: 2, rate: 0.5}\n"
    )
    (tmp_path / "two.yaml").write_text("base: one.yaml\nwork: other\ntrain: {depth: 5}\n")
    loaded = load_pipeline(tmp_path / "two.yaml", ["vocabulary.size=4"])
    assert (loaded.target, loaded.work, loaded.vocabulary.size) == ("a", "other", 4)
    assert (loaded.train.depth, loaded.train.rate) == (5, 0.5)
    (tmp_path / "two.yaml").write_text("base: nowhere.yaml\n")
    with pytest.raises(ConfigError, match=r"no config at .*nowhere\.yaml"):
        load_pipeline(tmp_path / "two.yaml")


def demo() -> dict[str, PipelineConfig]:
    """The recipes of the demo's heads, by the folders that these ship in."""
    files = {"head": "demo.yaml", "peagle": "demo-peagle.yaml"}
    return {folder: load_pipeline(HOME / "configs/train" / file) for folder, file in files.items()}


def test_the_recipes_of_the_pair_share_what_they_can() -> None:
    whole, parallel = demo().values()
    assert whole.trains_target and not parallel.trains_target
    assert (parallel.train.kind, parallel.target) == ("peagle", f"{whole.work}/target")
    for part in ("pretrain", "prompts", "filter", "respond", "features", "vocabulary"):
        assert getattr(parallel, part) == getattr(whole, part)


def test_the_shipped_pair_is_of_the_recipes() -> None:
    model, taught = read_model_config(HOME / "models/demo/target"), demo()["head"].pretrain
    assert taught is not None
    shape = taught.architecture
    sizes = (shape.num_hidden_layers, shape.hidden_size, shape.num_attention_heads, taught.vocabulary)
    assert sizes == (model.layers, model.hidden_size, model.heads, model.vocabulary)
    for folder, recipe in demo().items():
        head = json.loads((HOME / f"models/demo/{folder}/config.json").read_text())
        assert head["draft_vocab_size"] == recipe.vocabulary.size
        assert head["intermediate_size"] == recipe.train.intermediate_size
        assert head.get("fc_norm", False) == recipe.train.tap_norms

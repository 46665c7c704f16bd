"""A pipeline that trains its target: first of all stages, kept as the others are, and asked what it was taught."""

import json
from pathlib import Path

import pytest

from aerie.contracts.errors import AerieError, ConfigError
from aerie.contracts.provenance import weights_hash
from aerie.engine.model.config import read_model_config
from aerie.spec.checkpoints.card import origin_of
from aerie.train.demo.config import DocstringTarget
from aerie.train.demo.corpus.docstrings import read
from aerie.train.demo.corpus.questions import HELD_OUT, TAUGHT
from aerie.train.pipeline.config import PipelineConfig, load_pipeline
from aerie.train.pipeline.data.lines import read_own
from aerie.train.pipeline.filter import evaluation_prompts
from aerie.train.pipeline.folder import Finished
from aerie.train.pipeline.order import run_all, run_stage
from tests.house import HOME
from tests.train.pipeline.tiny import HELD_OUT as HELD_OUT_QUESTIONS
from tests.train.pipeline.tiny import SURROUNDINGS, changed, tree_bytes, write_prompts


def test_one_recipe_makes_a_target_and_its_head(taught: PipelineConfig, recital: DocstringTarget) -> None:
    work = run_all(taught, SURROUNDINGS).parent
    assert read_model_config(work / "target").layers == 8
    assert json.loads((work / "target/manifest.json").read_text())["config"]["steps"] == recital.steps
    records = list(read_own(work / "prompts/prompts.jsonl"))
    names = {entry.name for entry in read(Path(recital.corpus))}
    assert len(records) == 6 and {record["license"] for record in records} == {"PSF-2.0"}
    assert all(any(name in record["turns"][0]["content"] for name in names) for record in records)
    cells = json.loads((work / "evaluate/evaluation.json").read_text())
    assert [(cell["task"], cell["prompts"]) for cell in cells] == [("docstrings", 2)]
    origin = origin_of(work / "export/specforge")
    assert origin is not None and origin.target == weights_hash(work / "target")
    before = tree_bytes(work)
    run_all(taught, SURROUNDINGS)
    assert tree_bytes(work) == before
    with pytest.raises(Finished, match="--again"):
        run_stage("target", taught, SURROUNDINGS)


def test_a_question_is_drawn_once_per_entry_and_held_out_ones_in_other_words(
    taught: PipelineConfig, recital: DocstringTarget
) -> None:
    run_stage("target", taught, SURROUNDINGS)
    whole = changed(taught, prompts={"drawn": 24})
    records = list(read_own(run_stage("prompts", whole, SURROUNDINGS) / "prompts.jsonl"))
    entries = read(Path(recital.corpus))
    asked = {phrasing.format(name=e.name, kind=e.kind): e.name for e in entries for phrasing in TAUGHT}
    assert sorted(asked[record["turns"][0]["content"]] for record in records) == sorted(e.name for e in entries)
    new = {phrasing.format(name=e.name, kind=e.kind) for e in entries for phrasing in HELD_OUT}
    assert {record["turns"][0]["content"] for record in evaluation_prompts(whole)["docstrings"]} <= new


def test_what_is_not_trained_here_is_named(pipeline: PipelineConfig, taught: PipelineConfig) -> None:
    for config in (pipeline, changed(taught, target=pipeline.target)):
        with pytest.raises(AerieError, match="is not trained here; that takes a section pretrain and the target"):
            run_stage("target", config, SURROUNDINGS)
    with pytest.raises(ValueError, match=r"no prompts: name files in prompts\.sources"):
        changed(pipeline, prompts={"sources": []})
    with pytest.raises(ValueError, match="there is none"):
        changed(pipeline, prompts={"drawn": 3})


def test_a_head_that_the_target_could_not_have_is_refused_before_the_target_is_trained(taught: PipelineConfig) -> None:
    with pytest.raises(AerieError, match=r"vocabulary\.size is 401; the target has 400 ids"):
        run_all(changed(taught, vocabulary={"size": 401}), SURROUNDINGS)
    with pytest.raises(ConfigError, match=r"features\.taps is \[2, 8\]"):
        run_all(changed(taught, features={"taps": (2, 8)}), SURROUNDINGS)
    assert not Path(taught.work).exists()


def test_a_drawn_task_and_a_file_of_one_name_are_refused(taught: PipelineConfig, tmp_path: Path) -> None:
    run_stage("target", taught, SURROUNDINGS)
    own = write_prompts(tmp_path / "own.jsonl", HELD_OUT_QUESTIONS)
    twice = changed(taught, evaluate={"tasks": {"docstrings": str(own)}})
    with pytest.raises(AerieError, match=r"evaluate\.tasks has a file for docstrings"):
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


PAIRS = {"demo": "demo-peagle", "tasks": "tasks-peagle"}
"""The recipes of demo pairs: of a target and its head, and of its P-EAGLE head."""


def test_the_recipes_of_a_pair_share_what_they_can() -> None:
    for name, beside in PAIRS.items():
        whole, parallel = (load_pipeline(HOME / f"configs/train/{one}.yaml") for one in (name, beside))
        assert whole.trains_target and not parallel.trains_target
        assert parallel.target == f"{whole.work}/target"
        assert parallel.train.start_from in (None, f"{whole.work}/export/specforge")
        assert (parallel.prompts, parallel.respond, parallel.features) == (whole.prompts, whole.respond, whole.features)


def test_the_shipped_pair_is_of_one_of_the_recipes() -> None:
    model = read_model_config(HOME / "models/demo/target")
    shipped = []
    for name, beside in PAIRS.items():
        whole, parallel = (load_pipeline(HOME / f"configs/train/{one}.yaml") for one in (name, beside))
        assert whole.pretrain is not None
        shape = whole.pretrain.architecture
        sizes = (shape.num_hidden_layers, shape.hidden_size, shape.num_attention_heads, whole.pretrain.vocabulary)
        if sizes == (model.layers, model.hidden_size, model.heads, model.vocabulary):
            shipped.append({"head": whole, "peagle": parallel})
    [heads] = shipped
    for folder, recipe in heads.items():
        head = json.loads((HOME / f"models/demo/{folder}/config.json").read_text())
        assert head["draft_vocab_size"] == recipe.vocabulary.size
        assert head["intermediate_size"] == recipe.train.intermediate_size
        assert head.get("fc_norm", False) == recipe.train.tap_norms

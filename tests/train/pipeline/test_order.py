"""The whole way, from prompts to an exported head, and what stands between a finished stage and a second start."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from aerie.contracts.errors import AerieError
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.folder import Finished
from aerie.train.pipeline.order import STAGES, run_all, run_stage, stages_of
from tests.train.pipeline.tiny import SURROUNDINGS, changed, run_to, tree_bytes


def test_the_whole_way(shared: PipelineConfig) -> None:
    work = run_to(shared, "export").parent
    assert (*stages_of(shared),) == tuple(STAGES)[1:]
    for name in stages_of(shared):
        manifest = json.loads((work / name / "manifest.json").read_text())
        assert manifest["stage"] == name and manifest["counts"] and manifest["inputs"] and manifest["versions"]["torch"]
        assert set(manifest["outputs"]) == set(tree_bytes(work / name)) - {"manifest.json"}
        assert not (work / f"{name}.partial").exists()
    trained, exported = (load_file(work / name / "model.safetensors") for name in ("train/head", "export/specforge"))
    assert trained.keys() == exported.keys()
    assert all(torch.equal(trained[name], exported[name]) for name in trained)


def test_what_is_finished_is_kept_and_what_changed_is_named(shared: PipelineConfig, ready: PipelineConfig) -> None:
    run_to(shared, "export")
    before = tree_bytes(Path(shared.work))
    run_all(shared, SURROUNDINGS)
    assert tree_bytes(Path(shared.work)) == before
    with pytest.raises(Finished, match=r"--again"):
        run_stage("filter", shared, SURROUNDINGS)
    with pytest.raises(AerieError, match=r"filter was made with another longest"):
        run_all(changed(ready, filter={"longest": 30}), SURROUNDINGS)
    (Path(ready.work) / "filter").rename(Path(ready.work) / "filter.old")
    run_stage("filter", changed(ready, filter={"longest": 40}), SURROUNDINGS)
    with pytest.raises(AerieError, match=r"respond was made with another filter \(inputs"):
        run_all(changed(ready, filter={"longest": 40}), SURROUNDINGS)


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({"evaluate": {"tasks": {}}}, "no held-out prompts"),
        ({"evaluate": {"tasks": {"x": "nowhere.jsonl"}}}, "nowhere.jsonl"),
        ({"vocabulary": {"size": 401}}, "401; the target has 400"),
        ({"features": {"taps": [1, 9]}}, "features.taps"),
        ({"train": {"start_from": "nowhere"}}, "train.start_from"),
        ({"target": "nowhere"}, "nowhere"),
    ],
    ids=str,
)
def test_what_would_fail_hours_later_fails_at_once(pipeline: PipelineConfig, settings: dict, reported: str) -> None:
    with pytest.raises(AerieError, match=re.escape(reported)):
        run_all(changed(pipeline, **settings), SURROUNDINGS)
    assert not Path(pipeline.work).exists()

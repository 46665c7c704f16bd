"""The whole way, from prompts to an exported head, and what stands between a finished stage and a second start."""

import json

import torch
from safetensors.torch import load_file

from tests.train.stages.tiny import run_to, tree_bytes
from train.stages.config import PipelineConfig
from train.stages.order import STAGES


def test_the_whole_way(shared: PipelineConfig) -> None:
    work = run_to(shared, "export").parent
    for name in STAGES:
        manifest = json.loads((work / name / "manifest.json").read_text())
        assert manifest["stage"] == name and manifest["counts"] and manifest["inputs"] and manifest["versions"]["torch"]
        assert set(manifest["outputs"]) == set(tree_bytes(work / name)) - {"manifest.json"}
        assert not (work / f"{name}.partial").exists()
    trained, exported = (load_file(work / name / "model.safetensors") for name in ("train/head", "export/specforge"))
    assert trained.keys() == exported.keys()
    assert all(torch.equal(trained[name], exported[name]) for name in trained)

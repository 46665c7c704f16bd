"""A P-EAGLE head goes the whole way as an EAGLE-3 one: trained, killed, resumed, exported in two layouts, served."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from aerie.contracts.errors import AerieError, ConfigError
from aerie.engine.model.config import read_model_config
from aerie.spec.checkpoints.card import origin_of
from aerie.spec.checkpoints.loader import open_head
from aerie.spec.drafters import peagle
from aerie.spec.drafters.registry import kind_of
from aerie.train.heads.layout import boundaries_of
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.fitting.kinds import mask_token
from aerie.train.pipeline.folder import discard
from aerie.train.pipeline.order import run_stage
from tests.train.pipeline.test_kills import kill_when_begun
from tests.train.pipeline.tiny import SURROUNDINGS, changed, run_to, tree_bytes

PEAGLE = {"kind": "peagle", "depth": 4, "peagle": {"layers": 2, "elements": 100}}


@pytest.mark.parametrize("normed", [False, True])
def test_the_whole_way_of_a_p_eagle_head(ready: PipelineConfig, normed: bool) -> None:
    config = changed(ready, train=PEAGLE | {"norm_before_residual": normed})
    folder, model = run_to(config, "export"), read_model_config(Path(config.target))
    trained = load_file(Path(config.work) / "train/head/model.safetensors")
    for layout in ("specforge", "speculators"):
        exported = load_file(folder / layout / "model.safetensors")
        assert exported.keys() == trained.keys()
        assert all(torch.equal(exported[name], trained[name]) for name in trained)
        assert kind_of(folder / layout) is peagle.KIND
        checkpoint = open_head(folder / layout, model, torch.float32)
        opened = checkpoint.config
        assert opened.layers == 2 and peagle.mask_token_of(checkpoint) == mask_token(config)
        assert opened.taps == (2, 4, 5) and opened.draft_vocabulary == 300
        assert opened.norm_before_residual is normed
        text = (folder / layout / "README.md").read_text()
        assert "P-EAGLE draft head of 2 decoder layers" in text and "- peagle" in text
        assert origin_of(folder / layout) is not None
    reported = json.loads((folder / "speculators/config.json").read_text())
    assert reported["speculators_model_type"] == "peagle" and reported["mask_token_id"] == mask_token(config)
    assert reported["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 4
    cells = json.loads((Path(config.work) / "evaluate/evaluation.json").read_text())
    assert len(cells[0]["acceptance_per_position"]) == 3  # served at a depth of three, trained to four
    lines = (Path(config.work) / "train/metrics.jsonl").read_text().splitlines()
    assert len(json.loads(lines[0])["conditional_accuracy"]) == 4


def test_a_killed_p_eagle_training_ends_in_the_same_bytes(ready: PipelineConfig, tmp_path: Path) -> None:
    config = changed(ready, train=PEAGLE)
    calm = run_stage("train", config, SURROUNDINGS).rename(tmp_path / "calm")
    kill_when_begun("train", config, SURROUNDINGS)
    assert tree_bytes(run_stage("train", config, SURROUNDINGS)) == tree_bytes(calm)


def test_products_in_bf16_keep_masters_in_fp32(ready: PipelineConfig) -> None:
    folder = run_to(changed(ready, train=PEAGLE | {"precision": "bfloat16", "steps": 1}), "train")
    masters = load_file(folder / "checkpoint/weights.safetensors")
    assert {tensor.dtype for tensor in masters.values()} == {torch.float32}
    assert all(bool(torch.isfinite(tensor).all()) for tensor in masters.values())


def test_training_goes_on_from_heads_of_either_kind(
    shared: PipelineConfig, ready: PipelineConfig, tmp_path: Path
) -> None:
    single = run_to(shared, "export") / "specforge"
    from_single = changed(ready, train=PEAGLE | {"start_from": str(single), "steps": 1, "rate": 1e-9})
    folder = run_to(from_single, "export") / "specforge"
    begun, went_on = load_file(single / "model.safetensors"), load_file(folder / "model.safetensors")
    assert torch.equal(begun["fc.weight"], went_on["fc.weight"])
    assert boundaries_of(json.loads((folder / "config.json").read_text())) == (2, 4, 5)
    kept = folder.rename(tmp_path / "kept")
    for stage in ("train", "evaluate", "export"):
        discard(Path(ready.work), stage)
    more = PEAGLE | {"start_from": str(kept), "steps": 1}
    assert run_to(changed(ready, train=more), "train").exists()
    discard(Path(ready.work), "train")
    with pytest.raises(ConfigError, match=r"another number of layers: it has 2, here it is 3"):
        run_to(changed(ready, train=more | {"peagle": {"layers": 3}}), "train")
    discard(Path(ready.work), "train")
    with pytest.raises(ConfigError, match=r"another norm_before_residual: it has False, here it is True"):
        run_to(changed(ready, train=more | {"norm_before_residual": True}), "train")
    discard(Path(ready.work), "train")
    with pytest.raises(ConfigError, match=r"another kind: it has peagle, here it is eagle3"):
        run_to(changed(ready, train={"start_from": str(kept), "steps": 1}), "train")


def test_a_mask_token_that_texts_have_is_refused(ready: PipelineConfig) -> None:
    end = read_model_config(Path(ready.target)).end_ids[0]
    for token in (end, 400):
        own = {"kind": "peagle", "peagle": {"mask_token": token}}
        with pytest.raises(AerieError, match=rf"mask token is {token} \(train.peagle.mask_token"):
            mask_token(changed(ready, train=own))
    with pytest.raises(ValueError, match=r"tap_norms and norm_output are EAGLE-3\.1's"):
        changed(ready, train={"kind": "peagle", "tap_norms": True})

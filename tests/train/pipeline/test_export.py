"""What is exported is what was trained, bit for bit, in both layouts; its card is what serving checks."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from aerie.contracts.config import load_config
from aerie.contracts.errors import ConfigError
from aerie.contracts.provenance import template_hash, template_source, weights_hash
from aerie.engine.model.config import Rope, read_model_config, read_rope
from aerie.engine.model.config_numbers import ConfigNumbers
from aerie.spec.build import build_worker
from aerie.spec.checkpoints.card import Origin, origin_of, promised
from aerie.spec.checkpoints.loader import load_head, open_head
from aerie.train.heads.layout import load_exported, specforge_config
from aerie.train.pipeline.card import write_card
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.data.served import OutputEnd
from aerie.train.pipeline.data.shards import read_index
from aerie.train.pipeline.evaluate import Cell, as_table, conditional, together
from aerie.train.pipeline.export import shape_of, speculators_config
from aerie.train.pipeline.fitting.initial import shape_for
from tests.train.pipeline.tiny import ENGINE, changed, run_to


@dataclass(frozen=True)
class _Lender:
    embeddings: torch.Tensor
    output_weight: torch.Tensor


def test_both_layouts_hold_the_trained_bits(shared: PipelineConfig) -> None:
    folder = run_to(shared, "export")
    trained = load_file(Path(shared.work) / "train/head/model.safetensors")
    forge, speculators = (load_file(folder / name / "model.safetensors") for name in ("specforge", "speculators"))
    assert forge.keys() == trained.keys() and all(torch.equal(forge[name], trained[name]) for name in trained)
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in trained.items()}
    assert speculators.keys() == {*renamed, "embed_tokens.weight"}
    assert all(torch.equal(speculators[name], renamed[name]) for name in renamed)


def test_an_exported_head_loads_back_bit_equal(shared: PipelineConfig) -> None:
    folder = run_to(shared, "export") / "specforge"
    reported = json.loads((folder / "config.json").read_text())
    head = load_exported(folder, shape_of(reported))
    stored = load_file(folder / "model.safetensors")
    for name, weight in head.named_parameters():
        assert torch.equal(weight.bfloat16(), stored[name])
    opened = open_head(folder, read_model_config(Path(shared.target)), torch.float32)
    assert opened.config.taps == (2, 4, 5) and opened.config.draft_vocabulary == 300


def test_serving_reads_one_head_from_both_layouts(shared: PipelineConfig) -> None:
    folder, target = run_to(shared, "export"), Path(shared.target)
    end, model = OutputEnd(target), read_model_config(target)
    opened = [open_head(folder / name, model, torch.float32) for name in ("specforge", "speculators")]
    assert replace(opened[0].config, source="") == replace(opened[1].config, source="")
    one, other = (load_head(found, _Lender(end.embedding, end.output)) for found in opened)
    for part in ("fc", "output"):
        assert torch.equal(getattr(one, part).weight, getattr(other, part).weight)
    inner = [(head.stack.layers[0].attention, head.stack.layers[0].mlp) for head in (one, other)]
    layers = [(attention.qkv, attention.output, mlp.gate_up, mlp.down) for attention, mlp in inner]
    assert all(torch.equal(mine.weight, theirs.weight) for mine, theirs in zip(*layers, strict=True))
    assert torch.equal(one.embeddings, other.embeddings)
    assert one.draft_to_target is not None and other.draft_to_target is not None
    assert torch.equal(one.draft_to_target, other.draft_to_target)


def test_the_speculators_config_says_the_same_in_its_own_words(shared: PipelineConfig) -> None:
    folder = run_to(shared, "export")
    reported = json.loads((folder / "speculators/config.json").read_text())
    assert reported["speculators_model_type"] == "eagle3" and reported["norm_before_residual"] is False
    assert reported["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]  # boundaries; SpecForge counts outputs
    forge = json.loads((folder / "specforge/config.json").read_text())
    assert forge["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
    layer = reported["transformer_layer_config"]
    assert all(layer[key] == forge[key] for key in ("hidden_size", "num_attention_heads", "vocab_size", "rope_theta"))


def test_a_scaled_rope_is_read_from_both_layouts(shared: PipelineConfig) -> None:
    """The head of a target such as Llama 3.1 turns as its target does."""
    target, rope = Path(shared.target), Rope(5e5, "llama3", 8.0, 1.0, 4.0, 8192)
    shape = replace(shape_for(read_model_config(target), (2, 4, 5), 300), rope=rope)
    forge = specforge_config(shape)
    layer = speculators_config(forge, shape, target)["transformer_layer_config"]
    for config in (forge, layer):
        assert read_rope(ConfigNumbers(config, "config.json", "spec.head")) == rope
    assert shape_of(forge) == shape


def test_the_card_says_what_serving_asks(shared: PipelineConfig) -> None:
    folder, target = run_to(shared, "export"), Path(shared.target)
    for layout in ("specforge", "speculators"):
        origin = origin_of(folder / layout)
        assert origin == Origin(weights_hash(target), template_hash(template_source(target)))
        text = (folder / layout / "README.md").read_text()
        front = yaml.safe_load(text.split("---\n")[1])
        assert front["aerie"]["data_licenses"] == ["CC0-1.0"] and "Names and places in the prompts: not checked" in text
        assert "Safety note" in text and "| held out | 3,1,4 | 0 |" in text
        assert (folder / layout / "positions.png").read_bytes().startswith(b"\x89PNG")
    found = promised(
        folder / "specforge", load_config(None, ["spec.planner=fixed", "spec.depth=3", "spec.nodes=4"]).spec, []
    )
    cell = json.loads((Path(shared.work) / "evaluate/evaluation.json").read_text())[0]
    assert found is not None and found[0] == pytest.approx(cell["acceptance_per_position"], abs=2e-3)


def test_provenance_may_be_required(shared: PipelineConfig, tmp_path: Path) -> None:
    folder = run_to(shared, "export") / "specforge"
    words = [f"model.path={shared.target}", f"spec.head={folder}", "spec.depth=3", "spec.nodes=4", *ENGINE]
    required = [*words, "spec.require_provenance=true"]
    assert build_worker(load_config(None, required)).capacity.drafts
    (tmp_path / "other.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(ConfigError, match=r"aligned with other chat template"):
        build_worker(load_config(None, [*required, f"server.chat_template={tmp_path / 'other.jinja'}"]))
    other = tmp_path / "other"
    shutil.copytree(shared.target, other)
    tensors = load_file(other / "model.safetensors")
    tensors["model.norm.weight"] += 0.5
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    elsewhere = [f"model.path={other}", *required[1:]]
    with pytest.raises(ConfigError, match=r"aligned with other target weights: its card says"):
        build_worker(load_config(None, elsewhere))
    assert build_worker(load_config(None, [*elsewhere, "spec.require_provenance=false"])).capacity.drafts
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    (bare / "README.md").unlink()
    with pytest.raises(ConfigError, match=r"no card that says which target"):
        build_worker(load_config(None, [*required, f"spec.head={bare}"]))


def test_a_head_with_a_normed_residual_is_read_from_both_layouts(ready: PipelineConfig) -> None:
    config = changed(ready, train={"norm_before_residual": True, "steps": 2})
    folder, model = run_to(config, "export"), read_model_config(Path(config.target))
    for layout in ("specforge", "speculators"):
        assert open_head(folder / layout, model, torch.float32).config.norm_before_residual
        assert "which Aerie and vLLM read and SGLang does not" in " ".join(
            (folder / layout / "README.md").read_text().split()
        )


def test_a_head_with_the_norms_of_eagle_3_1_is_served(ready: PipelineConfig) -> None:
    config = changed(ready, train={"tap_norms": True, "norm_output": True, "steps": 2})
    folder = run_to(config, "export") / "specforge"
    opened = open_head(folder, read_model_config(Path(config.target)), torch.float32).config
    assert opened.pre_norm == "per_tap" and opened.norm_output
    assert json.loads((Path(config.work) / "evaluate/manifest.json").read_text())["counts"]["cells"] == 1


def test_a_baseline_stands_beside(shared: PipelineConfig, ready: PipelineConfig) -> None:
    baseline = run_to(shared, "export") / "specforge"
    config = changed(ready, train={"steps": 1}, evaluate={"baseline": str(baseline), "max_tokens": 4})
    folder = run_to(config, "evaluate")
    cells = json.loads((folder / "evaluation.json").read_text())
    assert [cell["head"] for cell in cells] == ["trained", "baseline"]
    assert "trained: length" in as_table(cells) and "baseline: length" in (folder / "evaluation.md").read_text()


def _cell(task: str, length: float, shares: list[float], counts: list[int], temperature: float = 0.0) -> Cell:
    known = {"head": "trained", "shape": "3,1,4", "prompts": 2, "tokens": 20}
    places = {"0-8": counts, "8-": [0, 0]}
    measured = {"acceptance_length": length, "acceptance_per_position": shares, "by_place": places}
    return {"task": task, "temperature": temperature, **known, **measured}


def test_a_card_weights_tasks_equally_and_shows_each_by_temperature_and_position(
    shared: PipelineConfig, tmp_path: Path
) -> None:
    run_to(shared, "evaluate")
    cells = [_cell("code", 3.0, [0.8, 0.6, 0.6], [1, 3]), _cell("sums", 1.5, [0.4, 0.1], [9, 12])]
    cells += [_cell("code", 2.0, [0.7], [1, 2], 1.0), _cell("sums", 1.0, [0.0], [2, 2], 1.0)]
    (whole, warm) = together(cells)
    assert (whole["task"], whole["acceptance_length"], whole["by_place"]["0-8"]) == ("all", 2.25, [10, 15])
    assert whole["acceptance_per_position"] == pytest.approx([0.6, 0.35, 0.3]) and warm["temperature"] == 1.0
    head = json.loads((Path(shared.work) / "train/head/config.json").read_text())
    index = read_index(Path(shared.work) / "features")
    write_card(tmp_path / "README.md", shared, index, shape_of(head), cells)
    text = (tmp_path / "README.md").read_text()
    assert "on 4 held-out prompts (2 tasks of equal weight, T=0, chains of 3): acceptance length 2.25" in text
    assert "| all | 3,1,4 | 0 | 2.25 |" in text and "| all | 3,1,4 | 1 | 1.50 |" in text
    assert "| code | 0 | 3.00 |  |" in text and "| all | 0 | 1.50 |  |" in text
    found = promised(tmp_path, load_config(None, ["spec.planner=fixed", "spec.depth=3", "spec.nodes=4"]).spec, [])
    assert found is not None and found[0] == pytest.approx([0.6, 0.35, 0.3], abs=2e-3)


def test_conditional_shares_are_of_those_that_got_so_far() -> None:
    assert conditional([0.8, 0.4, 0.0, 0.0]) == [0.8, 0.5, 0.0, 0.0]

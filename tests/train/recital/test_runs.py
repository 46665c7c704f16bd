"""Whole runs on a tiny pair: killed and resumed they end in the same bytes, and the head learns what it is shown."""

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from aerie.contracts.provenance import template_hash, template_source, weights_hash
from aerie.spec.checkpoints.card import Origin, origin_of
from aerie.train.__main__ import app
from aerie.train.heads.export import load_exported
from aerie.train.heads.features import FrozenTarget
from aerie.train.heads.loss import judge
from aerie.train.heads.unroll import unroll
from aerie.train.optimization import checkpoint
from aerie.train.optimization.muon import Muon
from aerie.train.recital.answers import answer, load_samples, save_samples
from aerie.train.recital.config import TargetRun, TrainConfig
from aerie.train.recital.conversations import Renderer, batches
from aerie.train.recital.docstrings import Entry
from aerie.train.recital.head_run import drawn_depth, train_head
from aerie.train.recital.pretrain import pretrain
from aerie.train.recital.preview import preview
from aerie.train.recital.questions import TAUGHT
from aerie.train.recital.recite import recite
from aerie.train.recital.start import started_head, started_vocabulary


@pytest.fixture
def brief(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    """The same, with each entry answered once and the head measured on two questions."""
    monkeypatch.setattr("aerie.train.recital.measure._ASKED", 2)
    return config.model_copy(update={"head": config.head.model_copy(update={"answer_temperatures": (0.8,)})})


class _Killed(Exception):
    pass


def _kill_after(monkeypatch: pytest.MonkeyPatch, saves: int) -> None:
    """Makes the run die right after its `saves`-th checkpoint."""
    whole, done = checkpoint.save, []

    def save(*args: object) -> None:
        whole(*args)  # type: ignore[arg-type]
        done.append(1)
        if len(done) == saves:
            raise _Killed

    monkeypatch.setattr(checkpoint, "save", save)


def test_a_resumed_target_is_the_undisturbed_one(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    pretrain(config.target)
    out = Path(config.target.out)
    calm = (out / "model.safetensors").read_bytes(), (out / "tokenizer.json").read_bytes()
    again = config.target.model_copy(update={"work": config.target.work + "-2", "out": config.target.out + "-2"})
    with monkeypatch.context() as patch, pytest.raises(_Killed):
        _kill_after(patch, 1)
        pretrain(again)
    pretrain(again)
    out = Path(again.out)
    assert ((out / "model.safetensors").read_bytes(), (out / "tokenizer.json").read_bytes()) == calm


def test_a_resumed_head_is_the_undisturbed_one(
    brief: TrainConfig, target: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_head(brief)
    calm = (Path(brief.head.out) / "model.safetensors").read_bytes()
    changed = brief.head.model_copy(update={"work": brief.head.work + "-2", "out": brief.head.out + "-2"})
    again = brief.model_copy(update={"head": changed})
    with monkeypatch.context() as patch, pytest.raises(_Killed):
        _kill_after(patch, 1)
        train_head(again)
    train_head(again)
    assert (Path(changed.out) / "model.safetensors").read_bytes() == calm


def test_another_draft_vocabulary_is_refused_on_resume(brief: TrainConfig, target: LlamaForCausalLM) -> None:
    once = brief.head.model_copy(update={"steps": 1, "answer_temperatures": ()})
    train_head(brief.model_copy(update={"head": once}))
    smaller = once.model_copy(update={"draft_vocabulary": 200})
    with pytest.raises(ValueError, match="another draft vocabulary"):
        train_head(brief.model_copy(update={"head": smaller}))


def test_the_export_reads_back_equal(brief: TrainConfig, target: LlamaForCausalLM) -> None:
    config = brief.model_copy(update={"head": brief.head.model_copy(update={"answer_temperatures": ()})})
    train_head(config)
    out = Path(config.head.out)
    written = json.loads((out / "config.json").read_text())
    assert written["architectures"] == ["LlamaForCausalLMEagle3"]
    assert written["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]  # outputs; boundaries 2, 4, 5
    tensors = load_file(out / "model.safetensors")
    checkpointed = load_file(Path(config.head.work) / "checkpoint/weights.safetensors")
    assert tensors.keys() == checkpointed.keys() | {"d2t", "t2d"}
    for name, weight in checkpointed.items():
        assert torch.equal(tensors[name], weight.to(torch.bfloat16))
    assert (torch.arange(300) + tensors["d2t"]).unique().numel() == 300 and tensors["t2d"].sum() == 300
    vocabulary = started_vocabulary(config.head, [], PreTrainedTokenizerFast.from_pretrained(config.target.out))
    shape = started_head(config.head, Path(config.target.out), vocabulary)[0].shape
    assert torch.equal(load_exported(out, shape).fc.weight, checkpointed["fc.weight"].to(torch.bfloat16).float())
    card = (out / "README.md").read_text()
    assert "data_licenses:\n  - PSF-2.0" in card and "Safety note" in card and "Measured: greedy answers to 2" in card
    target_folder = Path(config.target.out)
    assert origin_of(out) == Origin(weights_hash(target_folder), template_hash(template_source(target_folder)))


def test_a_head_learns_one_conversation_by_heart(
    config: TrainConfig, target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, entries: list[Entry]
) -> None:
    vocabulary = started_vocabulary(config.head, entries, tokenizer)
    head, frozen = started_head(config.head, Path(config.target.out), vocabulary)
    samples = list(answer(frozen.model, tokenizer, [(entries[0], TAUGHT[0])], temperature=0.0, seed=0))
    batch = next(batches(samples, tokens=128, longest=96, rng=random.Random(0)))
    features = frozen.features(batch.ids)
    matrices = [p for p in head.parameters() if p.ndim == 2]
    optimizers = [Muon(matrices, lr=0.02, weight_decay=0.0)]
    for _ in range(60):
        judged = judge(
            head, unroll(head, frozen.embedding, batch.ids, features.taps, 3), features.logits, batch.answer, vocabulary
        )
        judged.loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    accuracy = judged.right / judged.reached
    assert accuracy.min() > 0.8, accuracy


def test_depths_are_drawn_as_the_decay_says(config: TrainConfig) -> None:
    depths = [drawn_depth(config.head, step) for step in range(4000)]
    assert depths == [drawn_depth(config.head, step) for step in range(4000)]
    shares = [sum(depth > k for depth in depths) / len(depths) for k in range(4)]
    assert shares == pytest.approx([1.0, 0.8, 0.64, 0.0], abs=0.03)


def test_answers_are_reproducible_and_survive_storage(
    target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, entries: list[Entry], tmp_path: Path
) -> None:
    questions = [(entry, TAUGHT[0]) for entry in entries[:6]]
    first, again = (answer(target, tokenizer, questions, temperature=1.0, seed=5) for _ in range(2))
    assert first == again
    save_samples(first, tmp_path / "answers.safetensors")
    assert load_samples(tmp_path / "answers.safetensors") == first


def test_batched_answers_equal_answers_one_by_one(
    target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, entries: list[Entry]
) -> None:
    """Greedy, so padding on the left must change nothing; compared up to the shorter limit."""
    questions = [(entry, phrasing) for entry, phrasing in zip(entries[:4], TAUGHT, strict=False)]
    together = answer(target, tokenizer, questions, temperature=0.0, seed=0)
    for question, sample in zip(questions, together, strict=True):
        alone = answer(target, tokenizer, [question], temperature=0.0, seed=0)[0].ids
        assert sample.ids[: len(alone)] == alone
        assert (
            sample.ids[: len(alone) - 1][: alone.index(5)]
            == Renderer(tokenizer).prompt(question[1].format(name=question[0].name, kind=question[0].kind))[
                : alone.index(5)
            ]
        )


def test_a_recital_reports_shares(config: TrainConfig, target: LlamaForCausalLM) -> None:
    figures = recite(Path(config.target.corpus), Path(config.target.out), entries=4, seed=0)
    assert figures["taught"]["asked"] == figures["held_out"]["asked"] == 4
    assert all(0 <= figures[kind][share] <= 1 for kind in figures for share in ("first_line", "whole"))


def test_a_preview_stands_beside_the_runs(config: TrainConfig) -> None:
    pretrain(config.target)
    assert "target of step 4, head of step 0" in preview(config)
    FrozenTarget.load(Path(config.preview) / "target", (2, 4, 5))
    assert (Path(config.preview) / "head/model.safetensors").exists()


def test_finished_outputs_are_kept(config: TrainConfig, target: LlamaForCausalLM, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(config.model_dump()))
    refused = CliRunner().invoke(app, ["target", str(path)])
    assert refused.exit_code == 2 and "--again" in refused.stderr


def test_a_missing_config_or_target_is_named(config: TrainConfig, tmp_path: Path) -> None:
    missing = CliRunner().invoke(app, ["target", str(tmp_path / "no.yaml")])
    assert missing.exit_code == 2 and "no.yaml" in missing.stderr
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(config.model_dump()))
    early = CliRunner().invoke(app, ["head", str(path)])
    assert early.exit_code == 2 and "python -m aerie.train target" in early.stderr


def test_unknown_keys_are_refused(config: TrainConfig) -> None:
    fields = config.target.model_dump() | {"stepz": 3}
    with pytest.raises(ValueError, match="stepz"):
        TargetRun.model_validate(fields)

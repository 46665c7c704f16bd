"""The head of generated tasks: it learns its target's own answers, resumes to the same bytes, and serving reads it."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from aerie.engine.model.config import read_model_config
from aerie.spec.checkpoints.loader import open_head
from aerie.train.demo.config import TaskConfig, TaskHeadRun, TaskRun
from aerie.train.demo.head_run import train_head
from aerie.train.demo.judge import judged_folder
from aerie.train.optimization import checkpoint
from aerie.train.recital.pretrain import export, fresh_model


@pytest.fixture
def pair(
    run: TaskRun, tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> TaskConfig:
    """A random target of eight layers, saved, and the run of its head."""
    monkeypatch.setattr("aerie.train.demo.head_run._MEASURED", 1)
    monkeypatch.setattr("aerie.train.recital.answers._SLACK", 0.1)
    eight = run.architecture.model_copy(update={"num_hidden_layers": 8})
    run = run.model_copy(update={"architecture": eight, "shares": {"counting": 1.0, "tools": 1.0}})
    torch.manual_seed(0)
    export(fresh_model(eight, tokenizer), tokenizer, Path(run.out))
    head = TaskHeadRun(
        out=str(tmp_path / "head"),
        work=str(tmp_path / "head-work"),
        intermediate_size=48,
        draft_vocabulary=300,
        depth=3,
        step_decay=0.8,
        tap_norms=True,
        norm_output=True,
        answer_temperatures=(0.0, 0.8),
        exercises=3,
        steps=4,
        tokens_per_batch=256,
        longest=300,
        matrix_rate=0.01,
        vector_rate=0.01,
        warmup=2,
        decay=0.3,
        clip=0.5,
        seed=0,
        threads=1,
        checkpoint_every=2,
    )
    return TaskConfig(target=run, head=head)


def test_a_resumed_head_is_the_undisturbed_one_and_has_the_norms_of_eagle_3_1(
    pair: TaskConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_head(pair)
    out = Path(pair.head.out)
    served = open_head(out, read_model_config(Path(pair.target.out)), torch.float32).config
    assert served.norm_output and served.pre_norm == "per_tap"
    again = pair.model_copy(
        update={"head": pair.head.model_copy(update={"work": pair.head.work + "-2", "out": pair.head.out + "-2"})}
    )
    whole = checkpoint.save

    def save(*args: object) -> None:
        whole(*args)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(checkpoint, "save", save)
        train_head(again)
    train_head(again)
    assert (Path(again.head.out) / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    card = (out / "README.md").read_text()
    assert "counting" in card and "tools" in card


def test_a_target_s_folder_is_judged_by_task(pair: TaskConfig) -> None:
    rates = judged_folder(pair.target, count=1, new_phrasings=True)
    assert set(rates["alone"]) == set(pair.target.shares)
    assert all(rate == 0 for rate in rates["alone"].values())  # it is random

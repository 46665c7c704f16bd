"""Exports a pair from the checkpoints of unfinished runs, so that Aerie can be tried on it before training ends."""

import shutil
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from aerie.train.heads import export
from aerie.train.optimization import checkpoint
from aerie.train.recital import pretrain
from aerie.train.recital.config import TrainConfig
from aerie.train.recital.docstrings import read
from aerie.train.recital.start import started_head, started_vocabulary


def preview(config: TrainConfig) -> str:
    """Writes `config.preview`/target and /head and returns a line with their steps; without a checkpoint the head is
    untrained.
    """
    folder = Path(config.preview)
    target_step = _target(config, folder / "target")
    head_step = _head(config, folder / "target", folder / "head")
    return f"{folder}: target of step {target_step}, head of step {head_step}"


def _target(config: TrainConfig, out: Path) -> int:
    run = config.target
    model = pretrain.build(run, tokenizer := pretrain.build_tokenizer(run, read(Path(run.corpus))))
    step = checkpoint.load_weights(Path(run.work) / "checkpoint", model)
    fresh = out.with_name("target.new")
    pretrain.export(model, tokenizer, fresh)
    _swap(fresh, out)
    return step


def _head(config: TrainConfig, target: Path, out: Path) -> int:
    entries = read(Path(config.target.corpus))
    vocabulary = started_vocabulary(config.head, entries, PreTrainedTokenizerFast.from_pretrained(target))
    head, _ = started_head(config.head, target, vocabulary)
    step = checkpoint.load_weights(Path(config.head.work) / "checkpoint", head)
    fresh = out.with_name("head.new")
    export.export(head, vocabulary, target, fresh, trained_on=f"a preview at step {step}", measured="not yet")
    _swap(fresh, out)
    return step


def _swap(fresh: Path, out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    fresh.rename(out)

"""A tiny corpus, tokenizer, target and head for the tests of training."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from aerie.train.recital import pretrain
from aerie.train.recital.config import Architecture, HeadRun, TargetRun, TrainConfig
from aerie.train.recital.docstrings import Entry, read, write
from tests.house import HOME

CORPUS = HOME / "train/data/docstrings.jsonl.gz"


@pytest.fixture(scope="session")
def entries() -> list[Entry]:
    """Short ones of the pinned entries."""
    return [entry for entry in read(CORPUS) if len(entry.text) < 60][:24]


@pytest.fixture
def config(tmp_path: Path, entries: list[Entry]) -> TrainConfig:
    write(tmp_path / "corpus.jsonl.gz", entries)
    architecture = Architecture(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=8,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    common = {"tokens_per_batch": 128, "longest": 96, "warmup": 2, "decay": 0.3, "seed": 0, "threads": 1}
    target = TargetRun(
        corpus=str(tmp_path / "corpus.jsonl.gz"),
        out=str(tmp_path / "target"),
        work=str(tmp_path / "target-work"),
        vocabulary=400,
        architecture=architecture,
        steps=4,
        matrix_rate=0.01,
        vector_rate=0.01,
        checkpoint_every=2,
        **common,
    )
    head = HeadRun(
        out=str(tmp_path / "head"),
        work=str(tmp_path / "head-work"),
        intermediate_size=48,
        draft_vocabulary=300,
        depth=3,
        renderings=2,
        step_decay=0.8,
        answer_temperatures=(0.0, 0.8),
        steps=4,
        matrix_rate=0.01,
        vector_rate=0.01,
        clip=0.5,
        checkpoint_every=2,
        **common,
    )
    return TrainConfig(target=target, head=head, preview=str(tmp_path / "preview"))


@pytest.fixture
def tokenizer(config: TrainConfig, entries: list[Entry]) -> PreTrainedTokenizerFast:
    return pretrain.build_tokenizer(config.target, entries)


@pytest.fixture
def target(config: TrainConfig, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A random target, saved where the config says."""
    torch.manual_seed(0)
    model = pretrain.build(config.target, tokenizer)
    with torch.no_grad():  # training begins with residual branches at zero; taps that differ are wanted here
        for weight in model.parameters():
            if not weight.any():
                weight.normal_(std=0.05)
    pretrain.export(model, tokenizer, Path(config.target.out))
    return model.float()

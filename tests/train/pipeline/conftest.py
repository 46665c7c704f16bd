"""A tiny random target with a chat template, prompts for it, and a pipeline over both."""

import shutil
from pathlib import Path

import pytest
import torch

from aerie.train.pipeline.config import PipelineConfig
from aerie.train.recital import pretrain
from aerie.train.recital.config import Architecture, TargetRun
from aerie.train.recital.docstrings import read
from tests.house import HOME
from tests.train.pipeline.tiny import ENGINE, HELD_OUT, QUESTIONS, changed, run_to, write_prompts

CORPUS = HOME / "train/data/docstrings.jsonl.gz"


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 8 layers with its tokenizer; its residual branches do something, as a trained one's do."""
    out = tmp_path_factory.mktemp("pipeline") / "target"
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
    run = TargetRun.model_construct(vocabulary=400, architecture=architecture)
    entries = [entry for entry in read(CORPUS) if len(entry.text) < 60][:24]
    tokenizer = pretrain.build_tokenizer(run, entries)
    torch.manual_seed(0)
    model = pretrain.build(run, tokenizer)
    with torch.no_grad():
        for weight in model.parameters():
            if not weight.any():
                weight.normal_(std=0.05)
    pretrain.export(model, tokenizer, out)
    return out


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, target: Path) -> PipelineConfig:
    """A pipeline whose stages are run by the first test that needs them; nobody changes its folders."""
    return make_pipeline(tmp_path_factory.mktemp("shared"), target)


@pytest.fixture
def answered(shared: PipelineConfig, tmp_path: Path) -> PipelineConfig:
    """A pipeline of one's own that has its answers already."""
    run_to(shared, "respond")
    for stage in ("prompts", "filter", "respond"):
        shutil.copytree(Path(shared.work) / stage, tmp_path / "work" / stage)
    return changed(shared, work=str(tmp_path / "work"))


@pytest.fixture
def ready(shared: PipelineConfig, tmp_path: Path) -> PipelineConfig:
    """A pipeline of one's own that has all that training reads."""
    run_to(shared, "vocabulary")
    for stage in ("prompts", "filter", "respond", "features", "vocabulary"):
        shutil.copytree(Path(shared.work) / stage, tmp_path / "work" / stage)
    return changed(shared, work=str(tmp_path / "work"))


@pytest.fixture
def pipeline(tmp_path: Path, target: Path) -> PipelineConfig:
    """One with nothing done."""
    return make_pipeline(tmp_path, target)


def make_pipeline(folder: Path, target: Path) -> PipelineConfig:
    write_prompts(folder / "prompts.jsonl", QUESTIONS)
    write_prompts(folder / "held_out.jsonl", HELD_OUT)
    return PipelineConfig.model_validate(
        {
            "target": str(target),
            "work": str(folder / "work"),
            "prompts": {"sources": [{"path": str(folder / "prompts.jsonl"), "license": "CC0-1.0"}]},
            "respond": {"max_tokens": 24, "concurrency": 4},
            "features": {"longest": 96, "shard_tokens": 128},
            "vocabulary": {"size": 300},
            "train": {"depth": 3, "steps": 4, "tokens": 128, "rate": 1e-3, "checkpoint_every": 2, "log_every": 1},
            "evaluate": {
                "tasks": {"held out": str(folder / "held_out.jsonl")},
                "shapes": ["3,1,4"],
                "temperatures": [0.0],
                "max_tokens": 8,
                "settings": list(ENGINE),
            },
        }
    )

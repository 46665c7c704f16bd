"""Prompts for the tiny random target, and a pipeline over both."""

import shutil
from pathlib import Path

import pytest

from aerie.train.demo.config import Pretraining
from aerie.train.pipeline.config import PipelineConfig
from tests.train.pipeline.tiny import ENGINE, HELD_OUT, QUESTIONS, changed, run_to, write_prompts


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


@pytest.fixture
def taught(pipeline: PipelineConfig, tmp_path: Path, run: Pretraining) -> PipelineConfig:
    """One that trains its target first, and draws its prompts from what that learns."""
    work = str(tmp_path / "taught")
    wide = run.architecture.model_copy(update={"num_hidden_layers": 8, "max_position_embeddings": 4000})
    small = run.model_copy(update={"architecture": wide, "shares": {"counting": 1.0}})
    prompts, held_out = {"sources": [], "drawn": 6}, {"tasks": {}, "drawn": 2, "max_tokens": 4}
    own = {"work": work, "target": f"{work}/target", "pretrain": small.model_dump()}
    read = {"filter": {"near_duplicate": 1, "overlap_words": 1000}, "features": {"longest": 1024}}
    return changed(pipeline, **own, prompts=prompts, evaluate=held_out, train={"tokens": 1024}, **read)


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

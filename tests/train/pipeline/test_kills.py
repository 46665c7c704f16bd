"""SIGKILL at any stage, then the same start again: the bytes of an undisturbed run."""

import multiprocessing
import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.order import STAGES, Surroundings, run_stage
from tests.train.conftest import hasten
from tests.train.pipeline.endpoint import Endpoint
from tests.train.pipeline.tiny import SURROUNDINGS, changed, elsewhere, run_to, tree_bytes

BEGUN = {
    "target": "checkpoint/state.json",
    "respond": "journal.jsonl",
    "features": "shard-00000.safetensors",
    "train": "checkpoint/state.json",
    "export": "specforge/model.safetensors",
}
"""What a stage must have written before it is killed; of the others, that they have begun."""


def kill_when_begun(stage: str, config: PipelineConfig, surroundings: Surroundings) -> None:
    """Runs the stage in a process of its own, which dies at the first file that it touches once there is something to
    go on from. Whoever watched from outside could come too late: the stages here take milliseconds. The process is a
    fresh one: a fork cannot run autograd after its parent has started autograd's threads."""
    awaited = Path(config.work) / f"{stage}.partial" / BEGUN.get(stage, "manifest.json")
    child = multiprocessing.get_context("spawn").Process(target=_run_until, args=(awaited, stage, config, surroundings))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL, f"{stage} ended undisturbed"
    assert awaited.exists()


def _run_until(awaited: Path, stage: str, config: PipelineConfig, surroundings: Surroundings) -> None:
    def die_once_begun(event: str, _: tuple[object, ...]) -> None:
        if event in ("open", "os.rename", "os.mkdir") and awaited.exists() and awaited.stat().st_size:
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        hasten(patch)
        sys.addaudithook(die_once_begun)
        run_stage(stage, config, surroundings)


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_stage_ends_in_the_same_bytes(
    shared: PipelineConfig, taught: PipelineConfig, tmp_path: Path, stage: str
) -> None:
    calm = taught if stage == "target" else shared
    run_to(calm, "export" if calm is shared else stage)
    config = elsewhere(calm, tmp_path, before=stage)
    if stage == "respond":
        with Endpoint(Path(config.target)) as endpoint:
            reported = changed(config, respond={"url": endpoint.url, "concurrency": 1})
            kill_when_begun(stage, reported, SURROUNDINGS)
            folder = run_stage(stage, reported, SURROUNDINGS)
    else:
        kill_when_begun(stage, config, SURROUNDINGS)
        folder = run_stage(stage, config, SURROUNDINGS)
    expected = tree_bytes(Path(calm.work) / stage)
    assert tree_bytes(folder) == expected
    assert not (tmp_path / f"{stage}.partial").exists()

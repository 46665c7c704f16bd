"""SIGKILL at any stage, then the same start again: the bytes of an undisturbed run."""

import os
import signal
import sys
import traceback
from pathlib import Path

import pytest

from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.order import STAGES, Surroundings, run_stage
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
    go on from. Whoever watched from outside could come too late: the stages here take milliseconds."""
    awaited = Path(config.work) / f"{stage}.partial" / BEGUN.get(stage, "manifest.json")

    def die_once_begun(event: str, _: tuple[object, ...]) -> None:
        if event in ("open", "os.rename", "os.mkdir") and awaited.exists() and awaited.stat().st_size:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            sys.addaudithook(die_once_begun)
            run_stage(stage, config, surroundings)
        finally:
            traceback.print_exc()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, f"{stage} ended undisturbed"
    assert awaited.exists()


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

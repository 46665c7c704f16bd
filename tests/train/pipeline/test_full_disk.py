"""A disk without room, at every stage: a clear error, nothing that a later stage would read, a start that goes on."""

import io
import resource
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from aerie.contracts.errors import AerieError
from aerie.train.demo.model import save_tokenizer
from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.folder import manifest_of, reported_when_full
from aerie.train.pipeline.order import STAGES, run_stage
from tests.train.pipeline.tiny import SURROUNDINGS, elsewhere, run_to, tree_bytes

ROOM = [
    ("target", 20_000),  # of its tokenizer a part
    ("target", 60_000),
    ("prompts", 800),
    ("filter", 1100),
    ("respond", 2000),
    ("features", 20_000),
    ("vocabulary", 1000),
    ("train", 20_000),
    ("evaluate", 1000),
    ("export", 20_000),
]
"""Bytes that a file may have: enough to begin, too few for what the stage writes."""


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Standard error, which pytest keeps in a file, goes elsewhere meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(("stage", "room"), ROOM)
def test_a_full_disk_fails_clearly_and_the_next_start_ends_in_the_same_bytes(
    shared: PipelineConfig, taught: PipelineConfig, tmp_path: Path, stage: str, room: int
) -> None:
    calm = taught if stage == "target" else shared
    run_to(calm, "export" if calm is shared else stage)
    config = elsewhere(calm, tmp_path, before=stage)
    with files_of_at_most(room), pytest.raises(AerieError, match=r"disk of .* is full .*free some room"):
        run_stage(stage, config, SURROUNDINGS)
    assert not (tmp_path / stage).exists()
    assert not list((tmp_path / f"{stage}.partial").glob("shard-*"))
    with pytest.raises(AerieError, match="it was begun and not finished"):
        manifest_of(tmp_path, stage)
    assert tree_bytes(run_stage(stage, config, SURROUNDINGS)) == tree_bytes(Path(calm.work) / stage)


def test_every_stage_meets_a_full_disk() -> None:
    assert {stage for stage, _ in ROOM} == set(STAGES)


def test_a_tokenizer_is_written_whole_or_stays_as_it_was(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """A run that goes on reads the one that it left; its last step writes that again."""
    save_tokenizer(tokenizer, tmp_path)
    before = tree_bytes(tmp_path)
    with files_of_at_most(2000), pytest.raises(AerieError, match="is full"), reported_when_full(tmp_path):
        save_tokenizer(tokenizer, tmp_path)
    assert {name: data for name, data in tree_bytes(tmp_path).items() if "/" not in name} == before
    save_tokenizer(tokenizer, tmp_path)
    assert tree_bytes(tmp_path) == before

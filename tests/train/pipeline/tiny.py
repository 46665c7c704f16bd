"""What the tests of the pipeline are made of: few prompts, the stages in a row, and settings of a tiny engine."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aerie.train.pipeline.config import PipelineConfig
from aerie.train.pipeline.order import Surroundings, run_stage, stages_of
from aerie.train_engine import measure_head
from tests.train.pipeline.endpoint import Endpoint

QUESTIONS = [f"What does the number {word} say to {other}?" for word, other in zip("abcdefgh", "stuvwxyz", strict=True)]
HELD_OUT = ["Whom did they call?", "Is there more to it?"]
ENGINE = ("engine.threads=1", "engine.kv_tokens=4096", "model.dtype=float32", "scheduler.max_running=16")


def write_prompts(path: Path, questions: list[str]) -> Path:
    lines = [json.dumps({"messages": [{"role": "user", "content": question}]}) for question in questions]
    path.write_text("\n".join(lines) + "\n")
    return path


def changed(config: PipelineConfig, **sections: Any) -> PipelineConfig:
    """The same pipeline with some settings of some sections changed."""
    data = config.model_dump()
    for name, values in sections.items():
        data[name] = (data[name] or {}) | values if isinstance(values, dict) else values
    return PipelineConfig.model_validate(data)


@contextlib.contextmanager
def answered_in_place(config: PipelineConfig) -> Iterator[str]:
    with Endpoint(Path(config.target)) as endpoint:
        yield endpoint.url


SURROUNDINGS = Surroundings(answered_in_place, measure_head)


def run_to(config: PipelineConfig, last: str) -> Path:
    """The stages up to `last`; those that are there are kept."""
    for name in stages_of(config):
        folder = Path(config.work) / name
        if not folder.exists():
            run_stage(name, config, SURROUNDINGS)
        if name == last:
            return folder
    raise AssertionError(last)


def elsewhere(config: PipelineConfig, work: Path, *, before: str) -> PipelineConfig:
    """The same pipeline in another work folder, which has copies of the stages before one."""
    names = stages_of(config)
    for earlier in names[: names.index(before)]:
        shutil.copytree(Path(config.work) / earlier, work / earlier)
    own = {"target": str(work / "target")} if config.trains_target else {}
    return changed(config, work=str(work), **own)


def tree_bytes(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

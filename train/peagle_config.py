"""What a config of a P-EAGLE head says. The target and its text are those of another file, so that heads share them."""

from pathlib import Path

import yaml
from pydantic import Field

from train.config import DraftRun, TrainConfig, load_config


class ParallelRun(DraftRun):
    """Training of a P-EAGLE head on a finished target; `depth` is how many tokens it learns to draft at once."""

    pair: str
    """The training config of the target and its EAGLE-3 head; its answers and its draft vocabulary serve here too."""
    start_from: str | None = None
    """An exported EAGLE-3 head of the pair whose projection, layer, norm and output the head begins with."""
    keep_start: bool = False
    """Whether what it begins with stays as it is, so that the mask and the deeper layers alone learn."""
    layers: int = Field(ge=1)
    rate: float = Field(gt=0, le=1)
    """Of the anchors that draft at a depth, the share that drafts at the next."""
    floor: float = Field(gt=0, le=1)
    """The share of all anchors that every depth keeps at least."""
    depth_decay: float = Field(default=1.0, gt=0, le=1)
    """Weight of a depth's loss relative to the one before; the paper weighs all alike."""
    elements: int = Field(ge=2)
    """Elements of a row that one pass computes at most; longer rows go in parts."""


def load_parallel(path: Path) -> tuple[ParallelRun, TrainConfig]:
    """The run and the config of its pair."""
    run = ParallelRun.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    return run, load_config(Path(run.pair))

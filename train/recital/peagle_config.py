"""The schema of a P-EAGLE head's config. The target and its text come from another file, so that heads share them."""

from pathlib import Path

import yaml
from pydantic import Field

from aerie.train.recital.config import DraftRun, TrainConfig, load_config


class ParallelRun(DraftRun):
    """Training of a P-EAGLE head on a finished target; `depth` is how many tokens it learns to draft at once."""

    pair: str
    """The training config of the target and its EAGLE-3 head; its answers and its draft vocabulary are reused."""
    start_from: str | None = None
    """An exported EAGLE-3 head of the pair, which gives the initial projection, layer, norm and output."""
    keep_start: bool = False
    """Whether those weights stay frozen, so that only the mask and the deeper layers learn."""
    layers: int = Field(ge=1)
    rate: float = Field(gt=0, le=1)
    """Share of the anchors drafting at a depth that also draft at the next."""
    floor: float = Field(gt=0, le=1)
    """The share of all anchors that every depth keeps at least."""
    depth_decay: float = Field(default=1.0, gt=0, le=1)
    """Weight of a depth's loss relative to the one before; the paper weights all equally."""
    elements: int = Field(ge=2)
    """Most elements of a row in one pass; longer rows are split."""


def load_parallel(path: Path) -> tuple[ParallelRun, TrainConfig]:
    """The run and the config of its pair."""
    run = ParallelRun.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    return run, load_config(Path(run.pair))

"""What the config of demo pair 2 says."""

from pathlib import Path

import yaml
from pydantic import Field

from train.config import Architecture, Run, Strict


class ThinStart(Strict):
    """A run that begins with fewer layers, each step of which costs less; copying is learnt as soon."""

    layers: int = Field(ge=1)
    steps: int = Field(ge=0)


class TaskRun(Run):
    """Pre-training of a target on generated tasks."""

    vocabulary: int
    architecture: Architecture
    thin: ThinStart
    shares: dict[str, float]
    """Task -> its share of the exercises."""
    grown: int
    """Over how many steps the sizes of exercises grow from the smallest to the whole."""
    judged_every: int
    """After how many steps the exact rates on held-out values are printed."""


def load_tasks(path: Path) -> TaskRun:
    return TaskRun.model_validate(yaml.safe_load(path.read_text())["target"])

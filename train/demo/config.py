"""What the config of demo pair 2 says."""

from pathlib import Path

import yaml
from pydantic import Field

from aerie.train.recital.config import Architecture, EagleRun, Run, Strict


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


class TaskHeadRun(EagleRun):
    """Training of a head on a target's own answers to generated tasks."""

    exercises: int
    """How many the target answers at each temperature."""


class TaskConfig(Strict):
    """A config of generated tasks."""

    target: TaskRun
    head: TaskHeadRun


def load_tasks(path: Path) -> TaskConfig:
    return TaskConfig.model_validate(yaml.safe_load(path.read_text()))

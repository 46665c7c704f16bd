"""What a training config says: the shape of the run and where it reads and writes."""

from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Architecture(Strict):
    """The fields of a Llama `config.json` that a run chooses."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    tie_word_embeddings: bool


class Run(Strict):
    """What every run says: where it reads and writes, and its course."""

    out: str
    work: str
    """Folder of checkpoints and of what is made on the way; a run goes on from what it finds there."""
    steps: int
    tokens_per_batch: int
    longest: int
    """Ids kept of one conversation."""
    matrix_rate: float
    vector_rate: float
    warmup: int
    decay: float
    """Share of the steps over which the rate falls to nothing."""
    seed: int
    threads: int
    checkpoint_every: int


class TargetRun(Run):
    """Pre-training of a target on the pinned docstrings."""

    corpus: str
    vocabulary: int
    architecture: Architecture


class DraftRun(Run):
    """Training of a head, of either kind, on a finished target."""

    intermediate_size: int
    depth: int = Field(ge=1)
    """How many tokens ahead the head learns to draft."""
    clip: float


class EagleRun(DraftRun):
    """Training of an EAGLE-3 head; `depth` is its steps of training-time test."""

    draft_vocabulary: int
    step_decay: float
    """How often each such step is trained relative to the one before."""
    tap_norms: bool = False
    """EAGLE-3.1: each tap has a norm of its own."""
    norm_output: bool = False
    """EAGLE-3.1: what a step is fed of the one before is normed."""
    answer_temperatures: tuple[float, ...]
    """The target answers everything at each of these first; the head learns from those answers."""


class HeadRun(EagleRun):
    """Training of the EAGLE-3 head on the pinned docstrings, too."""

    renderings: int
    """In how many random phrasings and orders the corpus is asked; later epochs repeat them, their features kept."""


class TrainConfig(Strict):
    """A file of `configs/train/`."""

    target: TargetRun
    head: HeadRun
    preview: str
    """Where `preview` exports unfinished pairs."""


def load_config(path: Path) -> TrainConfig:
    return TrainConfig.model_validate(yaml.safe_load(path.read_text()))

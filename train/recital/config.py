"""The schema of a training config: the shape of the run and its paths."""

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
    """Fields common to every run: its paths and its training schedule."""

    out: str
    work: str
    """Folder of checkpoints and intermediate files; a run resumes from what it finds there."""
    steps: int
    tokens_per_batch: int
    longest: int
    """Ids kept per conversation."""
    matrix_rate: float
    vector_rate: float
    warmup: int
    decay: float
    """Share of the steps over which the learning rate falls to zero."""
    seed: int
    threads: int
    checkpoint_every: int


class TargetRun(Run):
    """Pre-training of a target on the pinned docstrings."""

    corpus: str
    vocabulary: int
    architecture: Architecture


class DraftRun(Run):
    """Training of a draft head of either kind on a finished target."""

    intermediate_size: int
    depth: int = Field(ge=1)
    """How many tokens ahead the head learns to draft."""
    clip: float


class EagleRun(DraftRun):
    """Training of an EAGLE-3 head; `depth` is its number of training-time-test steps."""

    draft_vocabulary: int
    step_decay: float
    """How often each of these steps is trained, relative to the one before."""
    tap_norms: bool = False
    """EAGLE-3.1: each tap has its own norm."""
    norm_output: bool = False
    """EAGLE-3.1: a step's output is normed before the next step reads it."""
    answer_temperatures: tuple[float, ...]
    """The target first answers everything at each of these temperatures; the head learns from the answers."""


class HeadRun(EagleRun):
    """Training of the EAGLE-3 head, on the pinned docstrings too."""

    renderings: int
    """Number of random renderings (phrasings and order) of the corpus; later epochs repeat them and reuse their
    features.
    """


class TrainConfig(Strict):
    """A file of `configs/train/`."""

    target: TargetRun
    head: HeadRun
    preview: str
    """Folder to which `preview` exports unfinished pairs."""


def load_config(path: Path) -> TrainConfig:
    return TrainConfig.model_validate(yaml.safe_load(path.read_text()))

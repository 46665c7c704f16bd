"""What a training config says: the shape of the run and where it reads and writes."""

from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Architecture(_Strict):
    """The fields of a Llama `config.json` that a run chooses."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    tie_word_embeddings: bool


class TargetRun(_Strict):
    """Pre-training of a target on the pinned docstrings."""

    corpus: str
    out: str
    work: str
    """Folder of checkpoints; a run goes on from the one it finds there."""
    vocabulary: int
    architecture: Architecture
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


class HeadRun(_Strict):
    """Training of the EAGLE-3 head on the finished target."""

    out: str
    work: str
    """Folder of checkpoints and of the target's own answers; a run goes on from what it finds there."""
    intermediate_size: int
    draft_vocabulary: int
    depth: int
    """Steps of training-time test: how many tokens ahead the head learns to draft."""
    step_decay: float
    """How often each such step is trained relative to the one before."""
    renderings: int
    """In how many random phrasings and orders the corpus is asked; later epochs repeat them, their features kept."""
    answer_temperatures: tuple[float, ...]
    """The target answers every entry at each of these first; the head learns from those answers and the corpus."""
    steps: int
    tokens_per_batch: int
    longest: int
    matrix_rate: float
    vector_rate: float
    warmup: int
    decay: float
    clip: float
    seed: int
    threads: int
    checkpoint_every: int


class TrainConfig(_Strict):
    """A file of `configs/train/`."""

    target: TargetRun
    head: HeadRun
    preview: str
    """Where `preview` exports unfinished pairs."""


def load_config(path: Path) -> TrainConfig:
    return TrainConfig.model_validate(yaml.safe_load(path.read_text()))

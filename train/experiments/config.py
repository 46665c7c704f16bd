"""The schema of `configs/train/experiments/`: a claim, the arms that test it, and how they are measured."""

from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, model_validator

from aerie.contracts.section import Section
from aerie.train.demo.config import DocstringTarget
from aerie.train.heads.objectives import OBJECTIVES


class Proxy(Section):
    """The pair that all experiments share: the target and its answers."""

    pretrain: DocstringTarget
    """The target, which learns a corpus of its own: docstrings of this one, and sources."""
    seed: int = 0
    entries: int
    """Docstrings that the target learns, spread over the corpus: the domain `prose`."""
    longest_text: int
    """Most characters of a docstring or a source."""
    sources: int
    """Functions whose source the target learns to recite: the domain `code`."""
    held_out: float = Field(gt=0, lt=1)
    """Share of the names that no head is trained on."""
    draft_vocabulary: int
    parts: int = Field(ge=1)
    """Into which the names that may be learned are divided. Each part is asked about in turn, so that more answers are
    about more names.
    """
    questions: int
    """Held-out questions of each domain that heads are measured on."""
    max_tokens: int
    """Most tokens of a measured answer."""
    work: str
    threads: int


class Arm(Section):
    """A way to train a head. Arms that differ only in name are trained once."""

    name: str
    kind: Literal["eagle3", "peagle"] = "eagle3"
    taps: Literal["fused", "top"] = "fused"
    """EAGLE-3's three taps, or only the last layer's output, as in EAGLE-1 and 2."""
    loss: str = "cross_entropy"
    """One of train/heads/objectives.py, or `feature`: regression on the target's next final state (EAGLE-1 and 2)."""
    rows: Literal["trained", "frozen"] = "trained"
    """Whether the head learns its norm and output rows, or keeps the target's."""
    norms: bool = False
    """EAGLE-3.1's norms on the taps and on what the head feeds back."""
    mask: Literal["right", "stale"] = "right"
    """`right` counts drafts as `train/heads/loss.py` does; `stale` is the mask of EAGLE's trainer, 1-2 columns late."""
    template: Literal["right", "none"] = "right"
    """Whether the head sees the served template, or bare questions and answers."""
    answers: int = 2048
    """Target's answers at T=1 to learn from, equally from each domain; a smaller number is a part of a larger one."""
    domains: tuple[Literal["prose", "code"], ...] = ("prose", "code")
    depth: int = 5
    layers: int = 1

    @model_validator(mode="after")
    def _possible(self) -> "Arm":
        if self.loss not in (*OBJECTIVES, "feature"):
            raise ValueError(f"loss is {self.loss!r}; it is one of {', '.join((*OBJECTIVES, 'feature'))}")
        if self.loss == "feature" and (self.kind, self.taps, self.depth, self.rows) != ("eagle3", "top", 1, "frozen"):
            raise ValueError("the feature loss is that of a head with taps: top, depth: 1 and rows: frozen")
        if (self.kind == "eagle3") != (self.layers == 1):
            raise ValueError("EAGLE-3 heads have 1 layer here; P-EAGLE heads more")
        return self


class Speed(Section):
    """Tokens per second of chains, by load."""

    depths: tuple[int, ...]
    concurrency: tuple[int, ...]


class Experiment(Section):
    """One experiment file; `name` is also that of its results in bench/results/."""

    name: str
    claim: str
    """The papers' claim, in one sentence."""
    arms: tuple[Arm, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int
    tokens_per_batch: int
    matrix_rate: float
    vector_rate: float
    shapes: tuple[str, ...] = ("5,1,6",)
    """depth,topk,nodes"""
    temperatures: tuple[float, ...] = (0.0, 1.0)
    beside: Literal["first", "previous"] = "first"
    """The arm that an arm is compared with."""
    along: Literal["name", "answers"] = "name"
    """The x axis of the plot."""
    speed: Speed | None = None

    @model_validator(mode="after")
    def _names_differ(self) -> "Experiment":
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names):
            raise ValueError(f"arms share names: {names}")
        return self


def load_proxy(path: Path) -> Proxy:
    return Proxy.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def load_experiment(path: Path) -> Experiment:
    return Experiment.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))

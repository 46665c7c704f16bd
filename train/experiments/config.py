"""The schema of `configs/train/experiments/`: a claim, the arms that test it, and how they are measured.

`proxy.yaml` beside them is a pipeline of `aerie train`: the target, the exercises, the steps of every head.
"""

from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, model_validator

from aerie.contracts.section import Section
from aerie.train.heads.objectives import OBJECTIVES

FEATURE = "feature"
"""The loss of EAGLE-1 and 2."""
_NOT_SETTINGS = {"name", "beside", "alone"}


class Arm(Section):
    """A way to train a head. Arms that differ only in name are trained once."""

    name: str
    beside: str | None = None
    """The arm that it is compared with, from which it differs in one setting; the first by default."""
    alone: bool = False
    """Whether it is compared with no arm."""
    kind: Literal["eagle3", "peagle"] = "eagle3"
    layers: int = Field(default=1, ge=1)
    """Layers of a P-EAGLE head."""
    taps: Literal["fused", "top"] = "fused"
    """EAGLE-3's three taps, or only the last layer's output, as in EAGLE-1 and 2."""
    loss: str = "cross_entropy"
    """One of train/heads/objectives.py, or `feature`: regression on the target's final states (EAGLE-1 and 2)."""
    rows: Literal["trained", "frozen"] = "trained"
    """Whether the head learns its norm and output rows, or keeps the target's."""
    start: Literal["random", "target"] = "random"
    """Whether the head begins at random or as the target's last layer, its norm and output rows aside."""
    norms: bool = False
    """EAGLE-3.1's norms on the taps and on what the head feeds back."""
    norm_before_residual: bool = False
    """speculators' residual, which is taken behind the hidden state's norm."""
    mask: Literal["right", "stale"] = "right"
    """`right` counts drafts as `train/heads/loss.py` does; `stale` is the mask of EAGLE's trainer, 1-2 columns late."""
    template: Literal["right", "none"] = "right"
    """Whether the head sees the served template, or bare prompts and answers."""
    answers: int = Field(default=1024, ge=1)
    """Answers to learn from, to prompts that no other seed has; a smaller number is a part of a larger one."""
    tasks: tuple[str, ...] = ()
    """Tasks that the exercises are of; all by default."""
    depth: int = Field(default=5, ge=1)
    """Drafts ahead that the head learns: EAGLE-3's training-time test."""

    @model_validator(mode="after")
    def _possible(self) -> "Arm":
        if self.loss not in (*OBJECTIVES, FEATURE):
            raise ValueError(f"loss is {self.loss!r}; it is one of {', '.join((*OBJECTIVES, FEATURE))}")
        if self.loss == FEATURE and (self.kind, self.taps) != ("eagle3", "top"):
            raise ValueError("the feature loss is that of an EAGLE head with taps: top")
        if self.kind == "eagle3" and self.layers > 1:
            raise ValueError(f"layers is {self.layers}; an EAGLE-3 head has 1, P-EAGLE heads may have more")
        if self.kind == "peagle" and (self.norms or self.mask == "stale" or self.rows == "frozen"):
            raise ValueError("norms, mask: stale and rows: frozen are settings of EAGLE heads")
        return self

    def differing(self, other: "Arm") -> list[str]:
        """The settings in which the two differ."""
        return [
            key for key in Arm.model_fields if key not in _NOT_SETTINGS and getattr(self, key) != getattr(other, key)
        ]


class Speed(Section):
    """Tokens per second of chains over those of plain decoding, by load."""

    depths: tuple[int, ...]
    concurrency: tuple[int, ...]
    rounds: int = Field(default=4, ge=2)
    """Rounds in which plain decoding and each depth take turns."""
    answers: int = Field(default=4, ge=1)
    """Fewest answers of a turn; with more requests at once each has one."""


class Experiment(Section):
    """One experiment file; `name` is also that of its results in bench/results/."""

    name: str
    claim: str
    """The papers' claim, in one sentence."""
    arms: tuple[Arm, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    shapes: tuple[str, ...] = ()
    """depth,topk,nodes; those of the proxy's section `evaluate` by default."""
    along: Literal["name", "answers"] = "name"
    """The x axis of the plot."""
    shown: tuple[str, ...] = ("all",)
    """Tasks that the plot shows; `all` weights every task equally."""
    speed: Speed | None = None

    @model_validator(mode="after")
    def _one_difference_at_a_time(self) -> "Experiment":
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names):
            raise ValueError(f"arms share names: {names}")
        for place, arm in enumerate(self.arms[1:], 1):
            wanted = self.beside(arm)
            if wanted is None:
                continue
            other = next((one for one in self.arms[:place] if one.name == wanted), None)
            if other is None:
                raise ValueError(f"{arm.name} stands beside {arm.beside}, which names none of the arms before it")
            if len(found := arm.differing(other)) != 1:
                raise ValueError(
                    f"{arm.name} differs from {other.name} in {', '.join(found) or 'nothing'}; arms that are compared "
                    f"differ in one setting (beside names another arm; alone: true compares it with none)"
                )
        return self

    def beside(self, arm: Arm) -> str | None:
        """The name of the arm that this one is compared with; None for the first, and for one that stands alone."""
        return None if arm.alone or arm == self.arms[0] else arm.beside or self.arms[0].name


def load_experiment(path: Path) -> Experiment:
    return Experiment.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))

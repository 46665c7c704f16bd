"""How far a step's chains are worth drafting, on devices where the host can read values without a host sync: CPUs.

A level costs a pass of the head whether or not it is accepted. If the head doubts every chain, the pass is saved; if it
is sure, chains grow to the depth of the plan. Called by `draft`; the target's choice still decides what is accepted.
(The stop of assisted generation in Hugging Face transformers, applied to the path instead of the last token.)
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.engine.step.state import DeviceState


@dataclass(slots=True)
class Confidence:
    """The confidence in the chains of one step's R rows so far."""

    floor: float
    """Paths with a lower log probability are not worth another level."""
    paths: Tensor
    """[R] log probability of each path."""

    def lost(self, level: Tensor) -> bool:
        """Whether no path is worth another level; `level` [R] are the log probabilities of the last level's tokens."""
        self.paths = self.paths + level
        return not bool((self.paths >= self.floor).any())


def confidence(state: DeviceState, threshold: float, rows: Tensor) -> Confidence | None:
    """Starts at the roots of rows [R]; None if all levels are drafted."""
    if threshold == 0 or not state.visible:
        return None
    return Confidence(math.log(threshold), torch.zeros(rows.numel()))

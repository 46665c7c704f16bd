"""How far a step's chains are worth drafting, where the device is the host: only there can one look without waiting.

A level costs a pass of the head whether or not it is accepted. Where the head itself doubts every chain, the pass is
spared; where it is sure, chains grow to the depth of the plan. Called by `draft`; what is accepted stays the target's
choice. (The stop of assisted generation in Hugging Face transformers, on the path instead of the last token.)
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.state import DeviceState


@dataclass(slots=True)
class Confidence:
    """Of one step's R rows in its chains so far."""

    floor: float
    """Log probability of a path below which it is not worth a level."""
    paths: Tensor
    """[R] of each path."""

    def lost(self, level: Tensor) -> bool:
        """Whether no path is worth another level, once the last one's tokens [R] have log probabilities `level`."""
        self.paths = self.paths + level
        return not bool((self.paths >= self.floor).any())


def confidence(state: DeviceState, threshold: float, rows: Tensor) -> Confidence | None:
    """For the roots of rows [R]; None where all levels are drafted."""
    if threshold == 0 or not state.visible:
        return None
    return Confidence(math.log(threshold), torch.zeros(rows.numel()))

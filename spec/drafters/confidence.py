"""How far a step's chains are worth drafting, on devices where the host can read values without a host sync: CPUs.

A level costs a pass of the head whether or not it is accepted. If the head doubts every chain, the pass is saved; if it
is sure, chains grow to the depth of the plan. The target's choice still decides what is accepted. (The stop of assisted
generation in Hugging Face transformers, applied to the path instead of the last token.)
"""

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class Confidence:
    """The confidence in the chains of one step's R rows so far."""

    floor: float
    """Paths with a lower log probability are not worth another level."""
    paths: Tensor | float = 0.0
    """[R] log probability of each path; that of the roots is 0."""

    def lost(self, level: Tensor) -> bool:
        """Whether no path is worth another level; `level` [R] are the log probabilities of the last level's tokens."""
        self.paths = paths = self.paths + level
        return not bool((paths >= self.floor).any())


def confidence_floor(threshold: float, *, visible: bool) -> float:
    """The log probability of `spec.confidence_threshold`; -inf, for chains of full depth, if the host may not look."""
    return math.log(threshold) if threshold and visible else -math.inf

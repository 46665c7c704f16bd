"""How far each row's chain is worth drafting, on devices where the host can read values without a host sync: CPUs.

A level costs a pass of the head and a node to verify, whether or not it is accepted. A row leaves the draft once the
head doubts its path; sure ones grow to the depth of the plan. So among many rows each drafts what is likely in this
very step. The target's choice still decides what is accepted. (The stop of assisted generation in Hugging Face
transformers, applied to the path instead of the last token.)
"""

import math

import torch
from torch import Tensor

from aerie.contracts.step import Ints


class Confidence:
    """The confidence in the chains of one step's R rows, of at most `most` [R] levels each."""

    def __init__(self, floor: float, most: Tensor) -> None:
        """Nodes on paths of a lower log probability than `floor` are not worth verifying."""
        self._floor = floor
        self._most = most
        self._paths = torch.zeros(most.shape, device=most.device)
        self._count = 0
        self.levels = torch.zeros_like(most)
        """[R] levels of each chain that are worth it."""

    def goes_on(self, level: Tensor) -> bool:
        """Whether any row drafts another level; `level` [R] are the log probabilities of the last level's tokens."""
        self._paths += level
        sure = (self._paths >= self._floor) & (self.levels == self._count) & (self._most > self._count)
        self.levels += sure
        self._count += 1
        return bool((sure & (self._most > self._count)).any())


def on_host(counts: Tensor) -> Ints:
    """Nodes [R] of chains that the host has ended."""
    read: Ints = counts.numpy()
    return read


def confidence_floor(threshold: float, *, visible: bool) -> float:
    """The log probability of `spec.confidence_threshold`; -inf, for chains of full depth, if the host may not look."""
    return math.log(threshold) if threshold and visible else -math.inf

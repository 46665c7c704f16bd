"""Which path of a tree a round accepts: the one that the target chose, or one by `spec.simulate_acceptance`.

`spec.trees.accept` has the rule, and is where a token is accepted; this file decides who applies it.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from aerie.contracts.spec_section import SpecConfig
from aerie.engine.step.state import DeviceState
from aerie.spec.round.simulate import simulate
from aerie.spec.round.stage import Staged
from aerie.spec.trees.accept import Accepted, accept
from aerie.spec.trees.tree import Tree


class Acceptance(Protocol):
    def __call__(
        self, state: DeviceState, staged: Staged, owners: Tensor, lengths: Tensor, tree: Tree, choices: Tensor
    ) -> Accepted:
        """The paths of table rows `owners` [R] of true `lengths` [R], by the target's choices [R, M]."""


def acceptance_of(spec: SpecConfig) -> Acceptance:
    return chosen if spec.simulate_acceptance is None else Simulated(spec.simulate_acceptance)


def chosen(
    state: DeviceState, staged: Staged, owners: Tensor, lengths: Tensor, tree: Tree, choices: Tensor
) -> Accepted:
    """What the target chose. With several ranks, what rank 0's target chose, before any KV moves along a path."""
    return state.kernels[accept](tree, choices, staged.counts, staged.depth).agreed(state.agree)


@dataclass(frozen=True, slots=True)
class Simulated:
    length: float
    """The mean of committed tokens, bonus included."""

    def __call__(
        self, state: DeviceState, staged: Staged, owners: Tensor, lengths: Tensor, tree: Tree, choices: Tensor
    ) -> Accepted:
        keys = state.tables.noise_keys[owners]  # [R]
        return simulate(tree, choices, staged.counts, staged.depth, length=self.length, keys=keys, positions=lengths)

"""Acceptance: a child is accepted iff it *is* the target's choice at its parent. Pure functions on tensors.

Losslessness needs nothing else: the choices on the accepted path are the target's own. They use each position's noise
once, whatever else was drafted. Called by the worker between the verifying pass and the cut at the row's end.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.spec.trees.tree import Tree


@dataclass(frozen=True, slots=True)
class Accepted:
    """The accepted path of each row. Entries of path and tokens past `counts` + 1 are undefined."""

    counts: Tensor
    """[R] accepted nodes, without the root."""
    tokens: Tensor
    """[R, W] the accepted tokens, then the bonus: the choices along the path."""
    path: Tensor | None
    """[R, W] nodes on the path, the root first; None for chains, whose path is 0, 1, 2, ..."""

    @property
    def is_chain(self) -> bool:
        return self.path is None

    def agreed(self, agree: Callable[[Tensor], Tensor]) -> "Accepted":
        """What `agree` makes of each tensor."""
        return Accepted(agree(self.counts), agree(self.tokens), None if self.path is None else agree(self.path))

    @property
    def nodes(self) -> Tensor:
        """[R, W], or [1, W] for chains: nodes on the path, the root first."""
        width, device = self.tokens.shape[1], self.tokens.device
        return torch.arange(width, device=device)[None, :] if self.path is None else self.path


def accept(tree: Tree, choices: Tensor, nodes: Tensor, depth: int) -> Accepted:
    """choices [R, M] at each node, nodes [R] the number of real nodes; W is M for chains, depth + 1 for trees."""
    places = torch.arange(choices.shape[1], device=choices.device)  # [M]
    inside = places < nodes[:, None]  # [R, M]
    if tree.parents is None or tree.words is None:
        matches = (tree.tokens[:, 1:] == choices[:, :-1]) & inside[:, 1:]  # [R, M - 1]
        return Accepted(matches.cumprod(1).sum(1), choices, None)
    matches = (tree.tokens == choices.gather(1, tree.parents)) & inside  # [R, M]
    matches[:, 0] = True
    missed = ((~matches).long() << places).sum(1, keepdim=True)  # [R, 1] words
    return along(tree, (tree.words & missed) == 0, choices, depth)


def along(tree: Tree, accepted: Tensor, choices: Tensor, depth: int) -> Accepted:
    """The path of the `accepted` nodes [R, M]: the root, then one node at each depth down to the last."""
    places = torch.arange(choices.shape[1], device=choices.device)  # [M]
    spare = depth + 1  # a column for nodes off the path, dropped
    targets = torch.where(accepted, tree.depths, spare)  # [R, M]
    path = torch.zeros(choices.shape[0], depth + 2, dtype=torch.int64, device=choices.device)
    path = path.scatter_(1, targets, places.expand_as(targets))[:, :spare]  # [R, depth + 1]
    return Accepted(accepted.sum(1) - 1, choices.gather(1, path), path)

"""Acceptance drawn at random instead of checked, to measure an untrained head: `spec.simulate_acceptance`.

Called by `acceptance` in place of `accept`. A row commits on average as many tokens a step as the setting says, up to
the depth that was drafted; the draw depends only on the row's seed and length. The text is nonsense, and every report
of its numbers says so.
"""

import torch
from torch import Tensor

from aerie.engine.sampling.noise import uniform
from aerie.spec.trees.accept import Accepted, along
from aerie.spec.trees.tree import Tree

_COIN = 0x5EED
"""Separates the draw from the Gumbel noise of the same row and position."""


def simulate(
    tree: Tree, choices: Tensor, nodes: Tensor, depth: int, *, length: float, keys: Tensor, positions: Tensor
) -> Accepted:
    """As `accept`. `length` is the mean of committed tokens, bonus included; `keys` and `positions` are [R]."""
    whole = int(length) - 1
    more = uniform(keys ^ _COIN, positions) < length - int(length)  # [R], as wanted
    wanted = (whole + more.long()).minimum(nodes - 1)
    places = torch.arange(choices.shape[1], device=choices.device)  # [M]
    if tree.is_chain:
        drafted = torch.cat((tree.tokens[:, 1:], choices[:, -1:]), 1)  # [R, M]
        return Accepted(wanted, torch.where(places < wanted[:, None], drafted, choices), None)
    # [R, M] the depth of each node that may be accepted, -1 elsewhere
    reached = torch.where((places < nodes[:, None]) & (tree.depths <= wanted[:, None]), tree.depths, -1)
    last = reached.argmax(1, keepdim=True)  # [R, 1]
    [words] = tree.masks
    accepted = (words.gather(1, last) >> places & 1) == 1  # [R, M]
    found = along(tree, accepted, choices, depth)
    path = found.nodes
    drafted = tree.tokens.gather(1, path).roll(-1, 1)  # [R, W]
    before_last = torch.arange(path.shape[1], device=choices.device) < found.counts[:, None]
    return Accepted(found.counts, torch.where(before_last, drafted, found.tokens), path)

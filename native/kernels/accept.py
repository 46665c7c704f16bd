"""The walk along the target's choices, in C++ (native/src/rows.cpp): one call instead of a dozen."""

import torch
from torch import Tensor

from aerie.native.library import library
from aerie.spec.trees.accept import Accepted
from aerie.spec.trees.tree import Tree


def accept(tree: Tree, choices: Tensor, nodes: Tensor, depth: int) -> Accepted:
    rows, width = choices.shape
    counts = torch.empty(rows, dtype=torch.int64)
    tokens, choices, nodes = tree.tokens.contiguous(), choices.contiguous(), nodes.contiguous()
    given = (tokens.data_ptr(), choices.data_ptr())
    if tree.parents is None or tree.words is None:
        library().accepted(counts.data_ptr(), None, None, *given, None, nodes.data_ptr(), rows, width, 0)
        return Accepted(counts, choices, None)
    path, along = torch.empty(2, rows, depth + 1, dtype=torch.int64).unbind()
    parents = tree.parents.contiguous()
    library().accepted(
        counts.data_ptr(),
        path.data_ptr(),
        along.data_ptr(),
        *given,
        parents.data_ptr(),
        nodes.data_ptr(),
        rows,
        width,
        depth + 1,
    )
    return Accepted(counts, along, path)

"""What a request's penalties and biases make of the target's logits, exact at every node of a tree.

The count of a token at a node is that of the committed answer, and of the node and its ancestors without the root,
which was counted when it was committed. So a node's logits are those that plain decoding has at its place: they are
made of the raw logits with the whole count, never of logits that were penalized before.
"""

import torch
from torch import Tensor

from aerie.engine.state.edit_tables import COUNT
from aerie.engine.state.row_tables import RowTables

PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
"""The columns that `edit` reads, in its order."""
MOST = 1e30
"""No edited logit is higher, so that a tiny repetition_penalty makes no infinities."""


def edit(logits: Tensor, rows: Tensor, tables: RowTables, path: Tensor | None) -> Tensor:
    """logits [n, V] of rows [n], path [n, M] drafted ids above and at each node, -1 elsewhere -> logits [n, V].

    In double precision, where a product of two floats is exact: so no kernel's fused multiply-add differs from this.
    """
    edits = tables.edits
    slots = edits.slots[rows]  # [n]
    counted = edits.counts[slots]  # [n, V], as counts, values and known
    counts = counted & COUNT
    if path is not None:
        counts = counts.scatter_add(1, path.clamp(min=0), (path >= 0).int())
    repetition, frequency, presence = (tables.sampling[name][rows][:, None].double() for name in PENALTIES)
    values = logits.double() + edits.biases[slots]
    known = (counted < 0) | (counts > 0)
    values = torch.where(known, torch.where(values > 0, values / repetition, values * repetition), values)
    values = values - frequency * counts - presence * (counts > 0)
    return torch.where((slots < edits.dummy)[:, None], values.clamp(max=MOST).to(logits.dtype), logits)

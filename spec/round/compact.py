"""Compaction: the KV of an accepted path moves to where the committed tokens belong. Called by `round` for trees."""

import torch
from torch import Tensor

from aerie.engine.step.state import DeviceState


def compact(state: DeviceState, owners: Tensor, lengths: Tensor, path: Tensor) -> None:
    """Moves the KV of nodes `path` [R, W] to the slots right after the lengths [R] of table rows `owners` [R].

    KV moved past the accepted nodes is never read.
    """
    rows, width = path.shape
    row_of_each = owners[:, None].expand(rows, width - 1).reshape(-1)  # [R * (W - 1)]
    starts = lengths[:, None]  # [R, 1]
    steps = torch.arange(1, width, device=path.device)  # [W - 1]
    source = state.tables.slots(row_of_each, (starts + path[:, 1:]).reshape(-1))  # [R * (W - 1)], as target
    target = state.tables.slots(row_of_each, (starts + steps).reshape(-1))
    state.target.pool.move(source, target)

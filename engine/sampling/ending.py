"""Ends rows at a stop id or at their limit, on the device, so that the next step already knows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.contracts.step import Ending
from aerie.engine.state.row_tables import RowTables


@dataclass(frozen=True, slots=True)
class Committed:
    """A step's tokens after the cut. All [rows]."""

    counts: Tensor
    endings: Tensor
    """Ending codes, int64."""

    @property
    def done(self) -> Tensor:
        return self.endings != Ending.OPEN


def cut(tokens: Tensor, counts: Tensor, lengths: Tensor, done: Tensor, rows: Tensor, tables: RowTables) -> Committed:
    """tokens [n, width], of which `counts` [n] were committed after `lengths` [n] known tokens. Rows that are `done`
    [n] commit nothing.

    `lengths` counts all tokens known before the step, including the root. A stop id stays as the last token.
    """
    width = tokens.shape[1]
    places = torch.arange(width, device=tokens.device)  # [width]
    stops = (tokens[:, :, None] == tables.stop_ids[rows][:, None, :]).any(-1) & (places < counts[:, None])  # as tokens
    first_stop = torch.where(stops, places, width).amin(1)  # [n], as all that follow
    room = (tables.limits[rows] - lengths).clamp(min=0)
    stopped = (first_stop < counts) & (first_stop < room)
    kept = torch.where(stopped, first_stop + 1, torch.minimum(counts, room))
    full = ~stopped & (kept >= room)
    endings = torch.where(stopped, int(Ending.STOP_ID), torch.where(full, int(Ending.LENGTH), int(Ending.OPEN)))
    return Committed(torch.where(done, 0, kept), torch.where(done, int(Ending.OPEN), endings))

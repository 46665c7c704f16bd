"""engine/sampling/ending.py, one program per row: one launch instead of some fifteen."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.contracts.step import Ending
from aerie.engine.sampling.ending import Committed
from aerie.engine.state.row_tables import RowTables


def cut(tokens: Tensor, counts: Tensor, lengths: Tensor, done: Tensor, rows: Tensor, tables: RowTables) -> Committed:
    count, width = tokens.shape
    kept, endings = torch.empty((2, count), dtype=torch.int64, device=tokens.device).unbind()
    find_ends[(count,)](
        kept,
        endings,
        tokens.contiguous(),
        counts,
        lengths,
        done,
        rows,
        tables.stop_ids,
        tables.limits,
        width,
        stops=tables.stop_ids.shape[1],
        block=triton.next_power_of_2(width),
        stop_id=int(Ending.STOP_ID),
        length=int(Ending.LENGTH),
        still_open=int(Ending.OPEN),
        num_warps=1,
    )
    return Committed(kept, endings)


@triton.jit
def find_ends(
    kept,
    endings,
    tokens,
    counts,
    lengths,
    done,
    rows,
    stop_ids,
    limits,
    width,
    stops: tl.constexpr,
    block: tl.constexpr,
    stop_id: tl.constexpr,
    length: tl.constexpr,
    still_open: tl.constexpr,
):
    """Grid (rows of the step)."""
    place = tl.program_id(0)
    row, count, places = tl.load(rows + place), tl.load(counts + place), tl.arange(0, block)
    token = tl.load(tokens + place * width + places, mask=places < width, other=0)
    stop = tl.load(stop_ids + row * stops + tl.arange(0, stops))
    hits = tl.max((token[:, None] == stop[None, :]).to(tl.int32), 1)  # [block], as token
    first = tl.min(tl.where((hits > 0) & (places < count) & (places < width), places, width), 0).to(tl.int64)
    room = tl.maximum(tl.load(limits + row).to(tl.int64) - tl.load(lengths + place), 0)
    stopped = (first < count) & (first < room)
    left = tl.where(stopped, first + 1, tl.minimum(count, room))
    ending = tl.where(stopped, stop_id, tl.where(left >= room, length, still_open)).to(tl.int64)
    ended = tl.load(done + place)
    tl.store(kept + place, tl.where(ended, 0, left))
    tl.store(endings + place, tl.where(ended, still_open, ending))

"""Memory that FlashInfer's planner writes: a schedule on the device, pinned copies that the host fills in rotation,
scratch.

Used by engine/attention/flashinfer.py. The planner fills pinned memory and starts a copy to the device. The host may be
steps ahead of that copy, so it writes a pinned buffer again only when the event after the buffer's last copy has
passed. With as many copies as plans in use the host never waits there. Sizes are calculated, and the planner checks
them again.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.errors import AerieError
from aerie.contracts.step import Ints
from aerie.engine.attention.inputs import AttentionShape

_ALIGNMENT = 16
_WORD = 4
_TILES = (16, 64, 128)
"""Rows of packed queries per FA2 block: FlashInfer chooses the smallest that holds a row."""
_WIDE_HEAD = 256
"""From this head size on, the largest tile is not used."""
_BLOCKS_PER_PROCESSOR = 2


@dataclass(frozen=True, slots=True)
class Load:
    """What a schedule is made for, in host counts."""

    rows: int
    queries: int
    uniform: int
    """Queries per row; 0 if rows differ."""
    graph: bool
    """Whether grid and addresses must be equal for all plans of this load."""
    split: bool = True
    """Whether long rows may be split among blocks. If not, a plan depends on `rows` and `queries` alone."""


@dataclass(frozen=True, slots=True)
class Room:
    """The most bytes that a load needs."""

    schedule: int
    scratch: int


def room(load: Load, shape: AttentionShape, processors: int) -> Room:
    """The planner splits a row's positions only while all blocks fit on the device at once, and pads a graph's grid to
    that number. Partial results of a split are fp32, one tile of queries per block.
    """
    groups = shape.heads // shape.kv_heads
    tile = _tile(load, groups, shape.head_dim)
    resident = _resident(shape, processors)
    blocks = max(resident, -(-load.queries * groups // tile) + load.rows)
    arrays = [blocks * _WORD] * 3 + [(load.rows + 1) * _WORD, _WORD, _WORD, (load.queries + 1) * _WORD, blocks]
    schedule = sum(_aligned(size) for size in arrays)
    if not load.split:
        return Room(schedule, 0)
    split = blocks if load.graph else resident
    return Room(schedule, _aligned(shape.heads * split * tile * (shape.head_dim + 1) * _WORD) + 2 * _ALIGNMENT)


def splittable(rows: int, queries: int, shape: AttentionShape, processors: int) -> bool:
    """Whether the planner can split a row of a pass of `rows` rows with `queries` queries each."""
    groups = shape.heads // shape.kv_heads
    tile = _tile(Load(rows, rows * queries, queries, graph=True), groups, shape.head_dim)
    return rows * -(-queries * groups // tile) < _resident(shape, processors)


def _resident(shape: AttentionShape, processors: int) -> int:
    """Blocks of each KV head that fit on the device at once."""
    return _BLOCKS_PER_PROCESSOR * processors // shape.kv_heads


def _tile(load: Load, groups: int, head_dim: int) -> int:
    if load.graph:
        longest = (load.uniform or load.queries - load.rows + 1) * groups
    else:
        longest = load.queries * groups // load.rows
    allowed = _TILES[:-1] if head_dim >= _WIDE_HEAD else _TILES
    return next((tile for tile in allowed if longest <= tile), allowed[-1])


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Schedule:
    """A plan's memory: first the planner's part, then the row arrays that the kernel reads beside it."""

    def __init__(self, size: int, rows: int, device: torch.device, copies: int) -> None:
        on_gpu = device.type == "cuda"
        self.size, self.rows = _aligned(size), rows
        self.serial = 0
        """Which plan the memory holds."""
        self._arrays = _aligned(_WORD * (3 * rows + 2))
        total = self.size + self._arrays
        self.memory = torch.zeros(total, dtype=torch.uint8, device=device)
        self._pinned = [torch.zeros(total, dtype=torch.uint8, pin_memory=on_gpu) for _ in range(copies)]
        self._copied = [torch.cuda.Event() for _ in range(copies)] if on_gpu else []

    @property
    def planned(self) -> Tensor:
        """The planner's part, on the device."""
        return self.memory[: self.size]

    def next_copy(self) -> Tensor:
        """The planner's part of the next pinned buffer, free to be written. Waits if the host is so far ahead that the
        buffer's last copy has not run.
        """
        self.serial += 1
        place = self.serial % len(self._pinned)
        if self._copied:
            self._copied[place].synchronize()
        return self._pinned[place][: self.size]

    def send(self, qo_indptr: Ints, kv_indptr: Ints, last_page_len: Ints) -> tuple[Tensor, Tensor, Tensor]:
        """Copies this step's row arrays [rows + 1], [rows + 1] and [rows] behind the planner's own copy
        -> the three on the device, int32.
        """
        place = self.serial % len(self._pinned)
        arrays = (qo_indptr, kv_indptr, last_page_len)
        packed = torch.from_numpy(np.concatenate(arrays).astype(np.int32))
        end = self.size + packed.numel() * _WORD
        pinned, memory = (part[self.size : end].view(torch.int32) for part in (self._pinned[place], self.memory))
        pinned.copy_(packed)
        memory.copy_(pinned, non_blocking=True)
        self.sent()
        first, second, third = memory.split([array.size for array in arrays])
        return first, second, third

    def sent(self) -> None:
        """All copies out of the current pinned buffer have been launched."""
        if self._copied:
            self._copied[self.serial % len(self._pinned)].record()

    def fits(self, needed: Room, rows: int) -> bool:
        return needed.schedule <= self.size and rows <= self.rows


class Scratch:
    """Memory for partial results of split rows, shared by all plans of a stream. Never shrinks."""

    def __init__(self, device: torch.device) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8, device=device)

    def grow(self, size: int) -> Tensor:
        """At least `size` bytes. Holders of a smaller buffer keep it alive, captured graphs too. Raises AerieError."""
        if self.memory.numel() < size:
            try:
                self.memory = torch.empty(size, dtype=torch.uint8, device=self.memory.device)
            except torch.cuda.OutOfMemoryError as error:
                raise AerieError(
                    f"attention needs {size / 2**20:.0f} MiB of scratch for split rows, and the GPU has not that "
                    f"much left: lower engine.memory_share or scheduler.max_running"
                ) from error
        return self.memory

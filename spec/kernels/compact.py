"""Compaction in one launch: moves the target's KV along each row's path to the slots right after the row's length.

A node's index is at least its place on the path, so a program that walks the path writes no slot that it reads later.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from aerie.engine.step.state import DeviceState

_BLOCK = 2048


def compact(state: DeviceState, owners: Tensor, lengths: Tensor, path: Tensor) -> None:
    pool, tables = state.target.pool, state.tables
    rows, width = path.shape
    numbers = 2 * pool.keys.shape[2] * pool.keys.shape[3]
    layers = pool.keys.shape[0]
    move_path[(rows, layers, triton.cdiv(numbers, _BLOCK))](
        pool.keys,
        path,
        owners,
        lengths,
        tables.pages,
        width,
        pool.keys.stride(0),
        tables.pages.stride(0),
        page_size=tables.page_size,
        numbers=numbers,
        block=min(_BLOCK, triton.next_power_of_2(numbers)),
    )


@triton.jit
def move_path(
    pool,
    path,
    owners,
    lengths,
    pages,
    width,
    layer_stride,
    row_stride,
    page_size: tl.constexpr,
    numbers: tl.constexpr,
    block: tl.constexpr,
):
    """Grid (rows, layers, blocks of a slot's values). A slot's keys and values are adjacent in `pool`."""
    row = tl.program_id(0)
    start, own = tl.load(lengths + row), pages + tl.load(owners + row) * row_stride
    places = tl.program_id(2) * block + tl.arange(0, block)
    layer = pool + tl.program_id(1).to(tl.int64) * layer_stride + places
    for step in range(1, width):
        source = start + tl.load(path + row * width + step)
        target = start + step
        held = tl.load(own + source // page_size).to(tl.int64) * page_size + source % page_size
        freed = tl.load(own + target // page_size).to(tl.int64) * page_size + target % page_size
        moved = tl.load(layer + held * numbers, mask=places < numbers)
        tl.store(layer + freed * numbers, moved, mask=places < numbers)

"""What one step leaves for the next, in C++ (rows.cpp): one call each way instead of an operator for each table."""

import torch
from torch import Tensor

from aerie.engine.state.future_map import Future
from aerie.native.library import library


def take(tables: Future, generations: Tensor, rows: Tensor) -> Future:
    count = rows.numel()
    bonus, lengths = torch.empty(2, count, dtype=torch.int64).unbind()
    found = Future(
        bonus, lengths, torch.empty(count, dtype=torch.bool), tables.seeds.new_empty(count, tables.seeds.shape[1])
    )
    library().taken(*_addresses(*found), *_addresses(*tables), *_places(tables, generations, rows))
    return found


def publish(
    tables: Future,
    generations: Tensor,
    rows: Tensor,
    bonus: Tensor,
    lengths: Tensor,
    done: Tensor,
    seeds: Tensor | None,
) -> None:
    own = (bonus, lengths, done, seeds)
    kept = [None if one is None else one.to(table.dtype).contiguous() for one, table in zip(own, tables, strict=True)]
    library().published(*_addresses(*tables), *_addresses(*kept), *_places(tables, generations, rows))


def _addresses(*tensors: Tensor | None) -> list[int | None]:
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


def _places(tables: Future, generations: Tensor, rows: Tensor) -> tuple[int, ...]:
    size = tables.seeds.shape[1] * tables.seeds.element_size()
    return generations.data_ptr(), rows.data_ptr(), rows.numel(), tables.bonus.shape[0] // 2, size

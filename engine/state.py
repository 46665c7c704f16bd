"""Everything that lives on the device between steps, as one value that both workers hold."""

from dataclasses import dataclass

import torch

from contracts.step import Capacity
from engine.batch import RowNeeds
from engine.future_map import FutureMap
from engine.row_tables import RowTables
from engine.target import TargetModel


@dataclass(frozen=True, slots=True)
class DeviceState:
    target: TargetModel
    tables: RowTables
    futures: FutureMap
    needs: RowNeeds
    capacity: Capacity
    device: torch.device


def make_state(
    target: TargetModel,
    capacity: Capacity,
    *,
    seed_width: int = 0,
    seed_dtype: torch.dtype = torch.float32,
    poison: bool = False,
    device: torch.device | str = "cpu",
) -> DeviceState:
    """Empty tables for `capacity.rows` rows; page tables reach past the longest row by what a step may write."""
    longest = capacity.max_length + capacity.reserve + 1
    return DeviceState(
        target=target,
        tables=RowTables(capacity.rows, -(-longest // capacity.page_size), capacity.page_size, device),
        futures=FutureMap(capacity.rows, seed_width=seed_width, seed_dtype=seed_dtype, device=device, poison=poison),
        needs=RowNeeds(capacity.rows),
        capacity=capacity,
        device=torch.device(device),
    )

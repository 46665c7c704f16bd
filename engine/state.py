"""Everything that lives on the device between steps, as one value that both workers hold."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from contracts.step import Capacity
from engine.batch import RowNeeds
from engine.clock import Clock, EventClock, StepClock
from engine.cuda import Runtime
from engine.future_map import FutureMap
from engine.kernels.bindings import REFERENCES, Kernels
from engine.pinned import PinnedTransfer
from engine.row_tables import RowTables
from engine.target import RankedTarget, TargetModel
from engine.transfer import HostTransfer, Transfer

_TRANSFER_BYTES = 8 << 20
"""Of one step, each way; what is larger finds its own place."""


def _alone(values: Tensor) -> Tensor:
    return values


@dataclass(frozen=True, slots=True)
class DeviceState:
    target: TargetModel
    tables: RowTables
    futures: FutureMap
    needs: RowNeeds
    capacity: Capacity
    transfer: Transfer
    clock: Clock
    kernels: Kernels
    runtime: Runtime | None = None
    """The GPU's, None where the device is the host."""
    agree: Callable[[Tensor], Tensor] = _alone
    """What rank 0 chose, on every rank: tokens and paths pass through it before anything is kept of them."""

    @property
    def visible(self) -> bool:
        """Whether the host may look at values within a step: that waits for nothing, and no rank must see the same."""
        return self.runtime is None and not isinstance(self.target, RankedTarget)

    @property
    def device(self) -> torch.device:
        return self.transfer.device


def make_state(
    target: TargetModel,
    capacity: Capacity,
    *,
    seed_width: int = 0,
    seed_dtype: torch.dtype = torch.float32,
    poison: bool = False,
    kernels: Kernels = REFERENCES,
    runtime: Runtime | None = None,
) -> DeviceState:
    """Empty tables for `capacity.rows` rows; page tables reach past the longest row by what a step may write.

    Without a `runtime` the device is the host.
    """
    longest = capacity.max_length + capacity.reserve + 1
    transfer: Transfer = HostTransfer()
    clock: Clock = StepClock(torch.get_num_threads())
    if runtime is not None:
        transfer, clock = PinnedTransfer(runtime, _TRANSFER_BYTES), EventClock(runtime)
    device = transfer.device
    return DeviceState(
        target=target,
        tables=RowTables(capacity.rows, -(-longest // capacity.page_size), capacity.page_size, device, kernels),
        futures=FutureMap(
            capacity.rows, seed_width=seed_width, seed_dtype=seed_dtype, device=device, poison=poison, kernels=kernels
        ),
        needs=RowNeeds(capacity.rows),
        capacity=capacity,
        transfer=transfer,
        clock=clock,
        kernels=kernels,
        runtime=runtime,
        agree=target.agree if isinstance(target, RankedTarget) else _alone,
    )

"""Everything that stays on the device between steps, in one value that both workers hold."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.contracts.step import Capacity, DecodeWork, Longs, StepPlan
from aerie.contracts.worker import Reading, Telling
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.cuda import Runtime
from aerie.engine.grammars.guides import Guides
from aerie.engine.grammars.masked import MaskedSteps
from aerie.engine.model.target import RankedTarget, TargetModel
from aerie.engine.state.edit_tables import EditTables
from aerie.engine.state.future_map import FutureMap
from aerie.engine.state.pinned import PinnedTransfer
from aerie.engine.state.row_tables import RowTables
from aerie.engine.state.transfer import HostTransfer, Transfer
from aerie.engine.step.batch import RowNeeds
from aerie.engine.step.clock import Clock, EventClock, StepClock

_TRANSFER_BYTES = 8 << 20
"""Buffer for one step, each way. Larger values are transferred separately."""


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
    """The GPU's runtime; None if the device is the host."""
    agree: Callable[[Tensor], Tensor] = _alone
    """Gives every rank what rank 0 chose: tokens and paths pass through it before any of them is stored."""
    guides: Guides | None = None
    """Rows whose answers must match a grammar; None if no answer can."""
    masked: MaskedSteps | None = None
    """Their masks, on a device that runs beside the host."""

    @property
    def visible(self) -> bool:
        """Whether the host may read values within a step: reading waits for nothing, and there are no other ranks to
        agree with.
        """
        return self.runtime is None and not isinstance(self.target, RankedTarget)

    def begin(self, plan: StepPlan) -> bool:
        """Takes in the grammars of a step's rows; says whether one of them chooses under a grammar."""
        if self.masked is not None:
            return self.masked.begin(plan)
        return self.guides is not None and self.guides.begin(plan)

    def forced(self, work: DecodeWork) -> Longs | None:
        """[rows, depth] tokens that grammars force and the step's chains begin with, -1 elsewhere; None if there are
        none. The host knows them in time only where it is the device.
        """
        if self.guides is None or self.masked is not None or work.topk > 1:
            return None
        return self.guides.forced(work)

    def answer(self, read: Reading, answer: Telling) -> None:
        """Answers a step, with what its grammars took."""
        if self.guides is None or self.masked is not None:
            answer(read)
        else:
            self.guides.answer(read, answer)

    def close(self) -> None:
        """Ends the threads; the rest ends with the process."""
        if self.masked is not None:
            self.masked.close()
        if self.guides is not None:
            self.guides.close()

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
    guides: Guides | None = None,
    mask_threads: int = 1,
) -> DeviceState:
    """Empty tables for `capacity.rows` rows. Page tables extend past the longest row by what a step may write.

    Without a `runtime` the device is the host; else `mask_threads` make the masks of `guides`.
    """
    longest = capacity.max_length + capacity.reserve + 1
    transfer: Transfer = HostTransfer()
    clock: Clock = StepClock(torch.get_num_threads())
    if runtime is not None:
        clock = events = EventClock(runtime)
        transfer = PinnedTransfer(runtime, _TRANSFER_BYTES, before=events.begin)
    device = transfer.device
    masked = None
    if guides is not None and runtime is not None:
        places = capacity.rows * capacity.reserve
        masked = MaskedSteps(
            guides, runtime, capacity.vocabulary, rows=capacity.rows, places=places, threads=mask_threads
        )
    return DeviceState(
        target=target,
        tables=RowTables(
            capacity.rows,
            -(-longest // capacity.page_size),
            capacity.page_size,
            device,
            kernels,
            EditTables(capacity.rows, capacity.edit_slots, capacity.vocabulary, device),
        ),
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
        guides=guides,
        masked=masked,
    )

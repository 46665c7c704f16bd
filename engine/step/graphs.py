"""Steps as CUDA graphs: what a worker launches for a bucket of rows, recorded once by family and replayed.

A bucket fixes every shape. Rows, their node counts and their positions come through tensors at fixed addresses. Surplus
rows are the dummy row: done at length 0, they write to the dummy page and commit nothing. The host plans attention
before the replay, into buffers that the recording reads. `engine.graphs: false` is the eager reference: the same
functions, launched one by one, and the same tokens.
"""

import gc
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, cast

import numpy as np
from torch import Tensor

from aerie.contracts.step import Bools, Ints, StepPlan
from aerie.engine.attention import Capturable
from aerie.engine.cuda import Recording, Runtime
from aerie.engine.model.target import RankedTarget
from aerie.engine.sampling.choose import Needs
from aerie.engine.state.transfer import Transfer
from aerie.engine.step.state import DeviceState


class Family(StrEnum):
    """What is recorded separately, in the order of a step."""

    DRAFT = "draft"
    VERIFY = "verify"
    FORWARD = "forward"
    """The first part of VERIFY, up to the logits, if masks are made before the choice."""
    CHOOSE = "choose"
    """The second part."""
    EXTEND = "extend"


class Sampling(StrEnum):
    """What the rows of a step need. Steps that ban stop ids alone or return log probabilities run eagerly."""

    GREEDY = "greedy"
    SAMPLED = "sampled"
    FILTERED = "filtered"
    EDITED = "edited"
    MASKED = "masked"

    @property
    def checks(self) -> Family:
        """The family that runs the target."""
        return Family.FORWARD if self is Sampling.MASKED else Family.VERIFY


NEEDS = {
    Sampling.GREEDY: Needs(noise=False, filters=False, bans=False),
    Sampling.SAMPLED: Needs(noise=True, filters=False, bans=False),
    Sampling.FILTERED: Needs(noise=True, filters=True, bans=False),
    Sampling.EDITED: Needs(noise=True, filters=True, bans=True, edits=True),  # whatever else its rows need
}


def sampling_of(state: DeviceState, plan: StepPlan) -> Sampling | None:
    """Of the step in progress."""
    needs = state.needs.of(plan.rows)
    if state.masked is not None and state.masked.wanted:
        return Sampling.MASKED
    if needs.edits:
        return Sampling.EDITED
    return next((kind for kind, own in NEEDS.items() if own == needs), None)


def kinds(state: DeviceState) -> dict[Sampling, Needs]:
    """Those that steps of this device can need."""
    edits = state.capacity.edit_slots > 0
    found = {kind: own for kind, own in NEEDS.items() if edits or not own.edits}
    if state.masked is not None:
        found[Sampling.MASKED] = replace(NEEDS[Sampling.EDITED], edits=edits)
    return found


def row_buckets(most: int) -> list[int]:
    """1, 2, 4, 8, then steps of an eighth to a quarter of the size, up to `most`."""
    found = [rows for rows in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512) if rows < most]
    return [*found, most]


def bucket_for(rows: int, buckets: Sequence[int]) -> int | None:
    """The smallest bucket that holds `rows` rows; None if none does."""
    return next((bucket for bucket in buckets if rows <= bucket), None)


class Graphs:
    """All recordings of a worker."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._recorded: dict[tuple[Family, Hashable], Recording[Any]] = {}

    def record(self, bucket: Hashable, families: Mapping[Family, Callable[[], Any]]) -> dict[Family, Any]:
        """Captures each family of a bucket, in order. A later one may read what an earlier one returned through
        `outputs`, in its warm-up too; since a capture runs nothing, each recording is replayed once.
        """
        return {family: self._capture(family, bucket, function) for family, function in families.items()}

    def replay(self, family: Family, bucket: Hashable) -> Any:
        """Launches a recording; returns the tensors that it fills."""
        recording = self._recorded[family, bucket]
        recording.replay()
        return recording.outputs

    def outputs(self, family: Family, bucket: Hashable) -> Any:
        return self._recorded[family, bucket].outputs

    def __contains__(self, bucket: Hashable) -> bool:
        return any((family, bucket) in self._recorded for family in (Family.VERIFY, Family.CHOOSE))

    def __len__(self) -> int:
        return len(self._recorded)

    def _capture(self, family: Family, bucket: Hashable, function: Callable[[], Any]) -> Any:
        self._recorded[family, bucket] = recording = self._runtime.capture(function)
        recording.replay()
        return recording.outputs


@dataclass(frozen=True, slots=True)
class FixedRows:
    """A step's rows at fixed addresses: they are the first values that every step stages. [R] each."""

    rows: Tensor
    generations: Tensor
    counts: Tensor
    """Nodes to verify; 1 in surplus rows and in rows that the head does not extend."""
    real: Tensor
    drafts: Tensor


def fix_rows(plan: StepPlan | None, size: int, counts: Ints | None, dummy_row: int, transfer: Transfer) -> FixedRows:
    """Stages a plan's rows, padded to `size`; without a plan all rows are surplus. Call it right after `begin`."""
    own = 0 if plan is None else plan.rows.size

    def padded(values: Ints | Bools | None, fill: int, kind: Any = np.int64) -> Tensor:
        whole = np.full(size, fill, dtype=kind)
        if own and values is not None:
            whole[:own] = values
        return transfer.put(whole, kind)

    return FixedRows(
        rows=padded(None if plan is None else plan.rows, dummy_row),
        generations=padded(None if plan is None else plan.generations, 0),
        counts=padded(counts, 1),
        real=transfer.put(np.arange(size) < own, np.bool_),
        drafts=padded(None if plan is None else plan.drafting, 0, np.bool_),
    )


def padded_bounds(bounds: Ints, size: int) -> Ints:
    """bounds [rows] -> [size]; surplus rows have length 0."""
    padded = np.zeros(size, dtype=bounds.dtype)
    padded[: bounds.size] = bounds
    return padded


@contextmanager
def recording(state: DeviceState) -> Iterator[Graphs]:
    """Graphs to record into, on the runtime's stream; their cost is added to the capacity report."""
    assert state.runtime is not None
    graphs, began = Graphs(state.runtime), time.monotonic()
    state.runtime.catch_up()  # weights and tables were written on the stream that loads
    gc.collect()
    gc.freeze()  # PyTorch collects before each capture, and need not look at all that was loaded each time
    try:
        with state.runtime.active():
            yield graphs
    finally:
        gc.unfreeze()
    seconds = round(time.monotonic() - began, 2)
    state.capacity.report.update(graphs=len(graphs), graph_bytes=state.runtime.graph_bytes(), graph_seconds=seconds)


def capturable(state: DeviceState, wanted: bool, refusal: str | None = None) -> Capturable | None:
    """The target's attention, if steps are to be recorded: `wanted` is engine.graphs, `refusal` what else keeps them
    from it. On a GPU, the report says why they are not.
    """
    attention: Any = getattr(state.target, "attention", None)
    reason = refusal
    if not wanted:
        reason = "engine.graphs is false"
    elif isinstance(state.target, RankedTarget) and state.target.ranks > 1:
        reason = f"{state.target.ranks} ranks share a step, and what they exchange is not recorded"
    elif not hasattr(attention, "hold"):
        reason = f"attention by {getattr(attention, 'name', 'the model itself')} cannot be recorded"
    if state.runtime is None:
        return None
    if reason is not None:
        state.capacity.report["graphs"] = f"none: {reason}"
        return None
    return cast(Capturable, attention)

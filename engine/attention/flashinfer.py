"""Attention by FlashInfer's FA2 kernels with Aerie's mask variant: for prefill, decode, trees and draft levels.

Aerie calls the compiled module directly, as the wheel's own wrapper does after its bookkeeping; a test checks that
every argument equals the wrapper's. Plans use host counts with upper bounds for lengths. The kernel gets the same
bounds, since it lays out partial results by them; the variant hides what lies beyond a true length.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.errors import ConfigError
from aerie.contracts.step import Ints
from aerie.engine.attention.flashinfer_modules import Module, load_module
from aerie.engine.attention.flashinfer_schedule import Load, Schedule, Scratch, room, splittable
from aerie.engine.attention.flashinfer_variant import refusal
from aerie.engine.attention.inputs import AttentionInputs, AttentionShape, FixedPages
from aerie.engine.state.kv_pool import KVPool

_CAUSAL, _BY_VARIANT = 1, 2
"""FlashInfer's mask modes: causal by its own lengths, which is exact if the planned lengths are; or by the variant for
every pair.
"""
_HEADS_LAST = 0
"""Layout [page, offset, head, dim]."""
_NO_WINDOW, _NO_FIXED_SPLIT, _NO_OTHER_BLOCKS = -1, -1, 0
_EAGER_COPIES = 8
"""Plans that may be in use without a graph: up to four per step, two steps."""
_HELD_COPIES = 2
"""A captured load is planned once per step, and two steps may be in flight."""


@dataclass(slots=True)
class _Plan:
    schedule: Schedule
    serial: int
    info: Any
    """The planner's fifteen numbers: tile, grid and offsets in the schedule."""
    scratch: Tensor
    arrays: tuple[Tensor, Tensor, Tensor]
    """On the device, int32: qo_indptr [rows + 1], kv_indptr [rows + 1], last_page_len [rows]."""
    kv_indices: Tensor
    """[pages] int32; of a held plan, as many as its rows may have."""
    prefix_lens: Tensor
    """[rows] int64"""
    words: Tensor | None
    """[queries] int64"""
    mode: int
    load: Load
    counts: "_Counts"
    """Those that the schedule was last made for."""


@dataclass(frozen=True, slots=True)
class _Counts:
    """A pass as the host knows it."""

    qo_indptr: Ints
    kv_indptr: Ints
    """[rows + 1], as `qo_indptr`."""
    last_page_len: Ints
    """[rows]"""
    page_size: int

    @property
    def rows(self) -> int:
        return self.last_page_len.size

    @property
    def queries(self) -> int:
        return int(self.qo_indptr[-1])

    @property
    def uniform(self) -> int:
        """Queries per row; 0 if rows differ."""
        first = int(self.qo_indptr[1])
        return first if bool((np.diff(self.qo_indptr) == first).all()) else 0


class FlashInferAttention:
    """For one shape of heads. A backend's plans are used one after the other, in the order of the stream."""

    name = "flashinfer"

    def __init__(
        self,
        shape: AttentionShape,
        module: Module | None = None,
        processors: int | None = None,
        *,
        dependent: bool = False,
    ) -> None:
        """`module` and `processors` default to the device's own. `dependent` lets a kernel start before the one before
        it has ended; it is only measured. Raises ConfigError.
        """
        reason = refusal(shape)
        if reason is not None:
            raise ConfigError(
                f"FlashInfer cannot serve this model: {reason}; set engine.attention=triton", param="engine.attention"
            )
        self._shape = shape
        self._module = load_module(shape) if module is None else module
        self._processors = (
            torch.cuda.get_device_properties(shape.device).multi_processor_count if processors is None else processors
        )
        self._dependent = dependent
        self._scratch = Scratch(shape.device)
        self._schedule = Schedule(0, 0, shape.device, _EAGER_COPIES)
        self._scale = shape.head_dim**-0.5

    def plan(self, inputs: AttentionInputs) -> _Plan:
        counts = _counts(inputs)
        load = Load(counts.rows, counts.queries, uniform=0, graph=False)
        needed = room(load, self._shape, self._processors)
        if not self._schedule.fits(needed, load.rows):
            size, rows = max(needed.schedule, self._schedule.size), max(load.rows, self._schedule.rows)
            self._schedule = Schedule(size, rows, self._shape.device, _EAGER_COPIES)
        schedule, scratch = self._schedule, self._scratch.grow(needed.scratch)
        info = self._schedule_rows(schedule, scratch, counts, load)
        return _Plan(
            schedule=schedule,
            serial=schedule.serial,
            info=info,
            scratch=scratch,
            arrays=schedule.send(counts.qo_indptr, counts.kv_indptr, counts.last_page_len),
            kv_indices=inputs.kv_indices,
            prefix_lens=_prefixes(inputs),
            words=inputs.words,
            mode=_CAUSAL if inputs.exact and inputs.words is None else _BY_VARIANT,
            load=load,
            counts=counts,
        )

    def splits(self, rows: int, queries: int) -> bool:
        return splittable(rows, queries, self._shape, self._processors)

    def hold(self, inputs: AttentionInputs, pages: FixedPages, *, split: bool) -> _Plan:
        """Row query counts are fixed. Without splits the grid depends on no length, so the planner's own padding for
        graphs is not asked for: its surplus blocks would repeat the first one, and each layer would merge.
        """
        counts = _counts(inputs)
        uniform = counts.uniform
        split = uniform == 0 or (split and self.splits(counts.rows, uniform))
        load = Load(counts.rows, counts.queries, uniform, graph=split, split=split)
        needed = room(load, self._shape, self._processors)
        schedule = Schedule(needed.schedule, 0, self._shape.device, _HELD_COPIES)
        scratch = self._scratch.grow(needed.scratch)
        info = self._schedule_rows(schedule, scratch, counts, load)
        schedule.sent()
        return _Plan(
            schedule=schedule,
            serial=schedule.serial,
            info=info,
            scratch=scratch,
            arrays=(inputs.qo_indptr.to(self._shape.device), pages.kv_indptr, pages.last_page_len),
            kv_indices=pages.kv_indices,
            prefix_lens=_prefixes(inputs),
            words=inputs.words,
            mode=_BY_VARIANT,
            load=load,
            counts=counts,
        )

    def renew(self, held: _Plan, kv_indptr: Tensor) -> None:
        """A schedule splits by pages: one for the same counts of pages is the same."""
        counts = replace(held.counts, kv_indptr=np.asarray(kv_indptr))
        assert counts.kv_indptr.size == held.counts.kv_indptr.size, "a held plan is for its own number of rows"
        if not held.load.split or np.array_equal(counts.kv_indptr, held.counts.kv_indptr):
            return
        info = self._schedule_rows(held.schedule, held.scratch, counts, held.load)
        assert list(info) == list(held.info), "the planner changed what the graph was captured with"
        held.schedule.sent()
        held.serial, held.counts = held.schedule.serial, counts

    def see(self, planned: _Plan, words: Tensor) -> _Plan:
        return replace(planned, words=words, mode=_BY_VARIANT)

    def run(self, planned: _Plan, query: Tensor, pool: KVPool, layer: int) -> Tensor:
        assert planned.serial == planned.schedule.serial, "a later plan took this one's schedule"
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        keys, values = pool.paged(layer)  # [pages, page_size, kv_heads, head_dim] each
        qo_indptr, kv_indptr, last_page_len = planned.arrays
        self._module.paged_run(
            planned.scratch,
            planned.schedule.planned,
            planned.info,
            query,
            keys,
            values,
            qo_indptr,
            kv_indptr,
            planned.kv_indices,
            last_page_len,
            out,
            None,  # no log-sum-exp
            planned.mode,
            _HEADS_LAST,
            _NO_WINDOW,
            self._dependent,
            planned.prefix_lens if planned.words is None else planned.words,
            planned.prefix_lens,
            self._scale,
            int(planned.words is None),
        )
        return out

    def _schedule_rows(self, schedule: Schedule, scratch: Tensor, counts: _Counts, load: Load) -> Any:
        shape = self._shape
        lengths = (np.diff(counts.kv_indptr) - 1) * counts.page_size + counts.last_page_len  # [rows]
        return self._module.plan(
            scratch,
            schedule.planned,
            schedule.next_copy(),
            torch.from_numpy(counts.qo_indptr),
            torch.from_numpy(counts.kv_indptr),
            torch.from_numpy(lengths.astype(np.int32)),
            load.queries,
            load.rows,
            shape.heads,
            shape.kv_heads,
            counts.page_size,
            load.graph,
            shape.head_dim,
            shape.head_dim,
            False,  # the planner's own causal mode is not used
            _NO_WINDOW,
            _NO_FIXED_SPLIT,
            not load.split,
            _NO_OTHER_BLOCKS,
            load.uniform,
        )


def _prefixes(inputs: AttentionInputs) -> Tensor:
    assert inputs.prefix_lens.dtype == torch.int64
    return inputs.prefix_lens


def _counts(inputs: AttentionInputs) -> _Counts:
    """numpy accepts host tensors only, so a device tensor raises an error here instead of a host sync."""
    return _Counts(
        np.asarray(inputs.qo_indptr),
        np.asarray(inputs.kv_indptr),
        np.asarray(inputs.last_page_len),
        inputs.page_size,
    )

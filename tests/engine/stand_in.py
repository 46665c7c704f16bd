"""A stand-in for the few calls of CUDA that lane and graphs make, on a CPU, and attention that may be captured.

A capture records every operator with the very tensors that it was given; a replay runs the operators again and fills
the same outputs, as a graph does: no line of Python runs twice, so what a step bakes in shows as a wrong token. A
capture runs nothing on a GPU, so what it made holds garbage here until the first replay. One that asks a tensor for its
value, or reads memory that nobody keeps, fails.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from aerie.engine.attention.inputs import AttentionInputs, FixedPages
from aerie.engine.attention.reference import ReferenceAttention
from aerie.engine.cuda import Recording
from aerie.engine.state.kv_pool import KVPool

T = TypeVar("T")

_WAITING = {
    "aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::masked_select", "aten::equal",
    "aten::is_nonzero", "aten::_unique2", "aten::bincount",
}  # fmt: skip
"""Operators after which a host knows what only a device did."""
_GARBAGE = 2**30
"""No row, no token, no place; as a number it is finite."""


class StandInEvent:
    """Passed as soon as it is recorded."""

    def __init__(self) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: "StandInEvent") -> float:
        return 1e3 * (end_event.at - self.at)


class NoWaits(TorchDispatchMode):
    """Fails where an operator would wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: list[Tensor] = []
        """Numbers of Python's: a device fills with one by a kernel, but stores one at indices by a blocking copy."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        indices = args[1] if name in ("aten::index", "aten::index_put", "aten::index_put_") else ()
        by_mask = any(index is not None and index.dtype == torch.bool for index in indices)
        assert name not in _WAITING and not by_mask, f"{name} waits for the device"
        if name.startswith("aten::index_put"):
            assert not any(args[2] is number for number in self._numbers), f"{name} of a number copies it and waits"
        result = func(*args, **(kwargs or {}))
        if name == "aten::lift_fresh":
            self._numbers.append(result)
        return result


class Capture(NoWaits):
    """Records operators. `made` are the storages that belong to the recording, `foreign` those that it reads and
    neither it nor one of the recordings right before it made.
    """

    def __init__(self, before: set[int]) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[Tensor | None]]] = []
        self.foreign: dict[int, tuple[str, StorageWeakRef]] = {}
        self.made: set[int] = set()
        self._before = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
        before = {value.untyped_storage().data_ptr() for value in given}
        if func._schema.name == "aten::lift_fresh":  # a number of Python's, which a GPU fills in by a kernel
            self.made |= before
        for value in given:
            place = value.untyped_storage().data_ptr()
            if place not in self.made | self._before:
                self.foreign.setdefault(place, (func._schema.name, StorageWeakRef(value.untyped_storage())))
        result = super().__torch_dispatch__(func, types, args, kwargs)
        fresh: list[Tensor | None] = []
        for value in tree_flatten(result)[0]:
            own = isinstance(value, Tensor) and value.untyped_storage().data_ptr() not in before
            fresh.append(value if own else None)
            if own:
                self.made.add(value.untyped_storage().data_ptr())
        self.calls.append((func, args, kwargs, fresh))
        return result

    def spoil(self) -> None:
        """Leaves in what was made what a GPU may leave in memory that nothing has filled."""
        for _, _, _, fresh in self.calls:
            for tensor in fresh:
                if tensor is not None and tensor.untyped_storage().data_ptr() in self.made:
                    tensor.fill_(_GARBAGE if tensor.dtype.itemsize > 1 else 1)

    def replay(self) -> None:
        for func, args, kwargs, fresh in self.calls:
            for old, new in zip(fresh, tree_flatten(func(*args, **kwargs))[0], strict=True):
                if old is not None and old.numel():
                    old.copy_(new)


class Streams(TorchDispatchMode):
    """Fails where work on the runtime's stream reads what another stream wrote, or the other way round, and nothing has
    waited in between. `active` and `catch_up` take the place of a runtime's.
    """

    def __init__(self) -> None:
        super().__init__()
        self._on = "the default stream"
        self._written: dict[int, tuple[str, StorageWeakRef]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in tree_flatten((args, kwargs or {}))[0]:
            if isinstance(value, Tensor):
                writer, storage = self._written.get(value.untyped_storage().data_ptr(), (self._on, None))
                stale = writer != self._on and storage is not None and not storage.expired()
                assert not stale, f"{func._schema.name} on {self._on} did not wait for {writer}"
        result = func(*args, **(kwargs or {}))
        for value in tree_flatten(result)[0]:
            if isinstance(value, Tensor) and value.numel():
                storage = value.untyped_storage()
                self._written[storage.data_ptr()] = (self._on, StorageWeakRef(storage))
        return result

    @contextmanager
    def active(self) -> Iterator[None]:
        before, self._on = self._on, "the runtime's stream"
        yield
        self._on = before

    def catch_up(self) -> None:
        self._written.clear()


class StandIn:
    """Implements engine.cuda.Runtime."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.captures: list[Capture] = []

    @contextmanager
    def active(self) -> Iterator[None]:
        yield

    def catch_up(self) -> None: ...

    def event(self) -> StandInEvent:
        return StandInEvent()

    def pinned(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8)

    def capture(self, function: Callable[[], T]) -> Recording[T]:
        function()
        capture = Capture(set().union(*(earlier.made for earlier in self.captures[-3:])))
        with capture:
            outputs = function()
        capture.spoil()
        self.captures.append(capture)

        @torch.inference_mode()
        def replay() -> None:
            capture.replay()

        return Recording(outputs, replay)

    def graph_bytes(self) -> int:
        return 0

    def release(self) -> None:
        gc.collect()


@dataclass(frozen=True, slots=True)
class _Held:
    pages: FixedPages
    prefix_lens: Tensor
    queries: int
    most: int
    """Pages of a row, at most."""
    words: Tensor | None = None


class HeldDense(ReferenceAttention):
    """The reference for eager passes; for held ones the same sum over every position that a row may have. It reads the
    page lists from where a recording does.
    """

    def __init__(self, *_: Any) -> None:
        self.renewed: list[list[int]] = []
        """Pages of each row, by call of `renew`."""

    def splits(self, rows: int, queries: int) -> bool:
        return False

    def hold(self, inputs: AttentionInputs, pages: FixedPages, *, split: bool) -> _Held:
        rows = inputs.qo_indptr.numel() - 1
        assert inputs.qo_indptr.diff().tolist() == [int(inputs.qo_indptr[1])] * rows
        return _Held(pages, inputs.prefix_lens, int(inputs.qo_indptr[1]), pages.kv_indices.numel() // rows)

    def renew(self, held: _Held, kv_indptr: Tensor) -> None:
        self.renewed.append(kv_indptr.diff().tolist())

    def see(self, planned: Any, words: Tensor) -> Any:
        return replace(planned, words=words)

    def run(self, planned: Any, query: Tensor, pool: KVPool, layer: int) -> Tensor:
        if not isinstance(planned, _Held):
            return super().run(planned, query, pool, layer)
        fixed, size, places = planned.pages, pool.page_size, torch.arange(planned.most)
        own = fixed.kv_indices[(fixed.kv_indptr[:-1, None] + places).clamp(max=fixed.kv_indices.numel() - 1)]
        own = torch.where(places < fixed.kv_indptr.diff()[:, None], own, 0).long()  # [rows, most]
        slots, rows = (own[:, :, None] * size + torch.arange(size)).flatten(1), own.shape[0]
        keys, values = (side[layer][slots].float() for side in (pool.keys, pool.values))
        groups = query.shape[1] // keys.shape[2]
        keys, values = (side.repeat_interleave(groups, 2) for side in (keys, values))
        queries = query.view(rows, planned.queries, *query.shape[1:]).float()
        scores = torch.einsum("rqhd,rkhd->rhqk", queries, keys) / query.shape[2] ** 0.5
        beyond = torch.arange(slots.shape[1]) - planned.prefix_lens.long()[:, None]
        if planned.words is None:
            seen = beyond[:, None] <= torch.arange(planned.queries)[:, None]
        else:
            words = planned.words.view(rows, planned.queries, 1)
            seen = (beyond < 0)[:, None] | (
                ((words >> beyond.clamp(0, 63)[:, None]) & 1 == 1) & ((beyond >= 0) & (beyond < 64))[:, None]
            )
        mixed = torch.einsum("rhqk,rkhd->rqhd", scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1), values)
        return mixed.reshape(query.shape).to(query.dtype)

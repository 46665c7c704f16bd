"""The transfer of a GPU: two copies of page-locked memory, one for each of the two steps that may be in flight.

The host writes one copy while the device may still read the other; an event marks when it has finished. Values put in
the same order have the same device address in every step, which captured graphs rely on.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from aerie.engine.cuda import Event, Runtime
from aerie.engine.state.transfer import Fetch, Words

_ALIGNMENT = 16
_TORCH = {
    np.dtype(kind): named
    for kind, named in (
        (np.int64, torch.int64),
        (np.int32, torch.int32),
        (np.float32, torch.float32),
        (np.bool_, torch.bool),
    )
}
_MOST_VIEWS = 1 << 12
"""Views that are kept: steps of a bucket stage the same shapes at the same places."""


class _Slot:
    """One of the two copies."""

    def __init__(self, runtime: Runtime, size: int) -> None:
        self.going_in = runtime.pinned(size)
        self.written = self.going_in.numpy()
        """The same bytes."""
        self.coming_out = runtime.pinned(size)
        self.read: Event = runtime.event()
        """Passed once the device has read the inputs."""
        self.extra: list[Tensor] = []
        """Page-locked copies of values that did not fit."""


class PinnedTransfer:
    """Implements engine.state.transfer.Transfer with `size` bytes each way."""

    def __init__(self, runtime: Runtime, size: int, before: Callable[[], None] = lambda: None) -> None:
        """`before` is called right before every copy to the device."""
        self.device = runtime.device
        self._before = before
        self._runtime = runtime
        self._size = size
        self._buffer = torch.zeros(size, dtype=torch.uint8, device=runtime.device)
        self._slots = (_Slot(runtime, size), _Slot(runtime, size))
        self._current = 0
        self._used = 0
        self._fetched = 0
        self._views: dict[tuple[int, np.dtype[Any], tuple[int, ...]], Tensor] = {}
        self._waiting: int | None = None
        """Inside `together`: the start of the part that has not been sent."""

    def begin(self) -> None:
        self._current = 1 - self._current
        slot = self._slots[self._current]
        slot.read.synchronize()
        slot.extra.clear()
        self._used = self._fetched = 0

    def put(self, values: NDArray[Any], kind: DTypeLike = np.int64) -> Tensor:
        wanted = np.dtype(kind)
        slot, first = self._slots[self._current], -(-self._used // _ALIGNMENT) * _ALIGNMENT
        end = first + values.size * wanted.itemsize
        if end > self._size:
            return self._put_apart(slot, values, wanted)
        self._used = end
        inside = slot.written[first:end].view(wanted).reshape(values.shape)
        np.copyto(inside, values, casting="unsafe")
        if self._waiting is None:
            self._send(first, end)
        return self._view(first, wanted, values.shape)

    @contextmanager
    def together(self) -> Iterator[None]:
        assert self._waiting is None, "puts are together already"
        self._waiting = self._used
        try:
            yield
        finally:
            first, self._waiting = self._waiting, None
            if self._used > first:
                self._send(first, self._used)

    def fetch(self, words: Tensor) -> Fetch:
        locked, first = self._slots[self._current].coming_out, self._fetched
        end = self._fetched = first + 4 * words.numel()
        target = (locked[first:end] if end <= self._size else self._runtime.pinned(end - first)).view(
            torch.int32
        )  # [n]
        target.copy_(words, non_blocking=True)
        written = self._runtime.event()
        written.record()

        def read() -> Words:
            written.synchronize()
            return target.numpy().copy()

        return read

    def _view(self, first: int, wanted: "np.dtype[Any]", shape: tuple[int, ...]) -> Tensor:
        """What was put at `first` bytes, on the device."""
        place = first, wanted, shape
        if place not in self._views:
            if len(self._views) == _MOST_VIEWS:
                self._views.clear()
            count = math.prod(shape) * wanted.itemsize
            self._views[place] = self._buffer[first : first + count].view(_TORCH[wanted]).view(shape)
        return self._views[place]

    def _put_apart(self, slot: _Slot, values: NDArray[Any], wanted: "np.dtype[Any]") -> Tensor:
        """For values too large for the buffer: long prompts with many pages."""
        locked = self._runtime.pinned(values.size * wanted.itemsize)
        np.copyto(locked.numpy().view(wanted).reshape(values.shape), values, casting="unsafe")
        slot.extra.append(locked)
        self._before()
        sent = locked.to(self.device, non_blocking=True)
        slot.read.record()
        return sent.view(_TORCH[wanted]).view(values.shape)

    def _send(self, first: int, end: int) -> None:
        slot = self._slots[self._current]
        self._before()
        self._buffer[first:end].copy_(slot.going_in[first:end], non_blocking=True)
        slot.read.record()

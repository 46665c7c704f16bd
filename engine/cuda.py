"""The few CUDA calls that a lane and its graphs make, behind one value that tests can replace.

The lane's builder makes it. All work is launched on one stream, which keeps plans, page tables and kernels in order.
"""

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

_WARM_UPS = 2
"""Runs before a capture: libraries allocate their workspaces in the first, kernels are selected in the second."""


class Event(Protocol):
    """A place in the stream."""

    def record(self) -> None: ...

    def query(self) -> bool:
        """Whether the device has passed it."""

    def synchronize(self) -> None:
        """Waits until the device has passed it."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds on the device until `end_event`, which it has passed."""


class Recording(Generic[T]):
    """A captured function: `outputs` is what it returned, and every replay fills the same tensors."""

    def __init__(self, outputs: T, replay: Callable[[], None]) -> None:
        self.outputs = outputs
        self.replay = replay


class Runtime(Protocol):
    device: torch.device

    def active(self) -> AbstractContextManager[None]:
        """A context in which work is launched on the runtime's stream."""

    def catch_up(self) -> None:
        """Waits for all work launched on any stream: models are loaded on a different stream than steps run on."""

    def event(self) -> Event: ...

    def pinned(self, size: int) -> Tensor:
        """Page-locked host bytes [size], which the device copies without waiting."""

    def capture(self, function: Callable[[], T]) -> Recording[T]:
        """Runs `function` as a warm-up, then records it. It may read only tensors that outlive the recording."""

    def graph_bytes(self) -> int:
        """Bytes of memory that recordings hold."""

    def release(self) -> None:
        """Returns unused memory to the device, for the next model that this process loads."""


class _StreamEvent(torch.cuda.Event):
    """An event of one stream: asking PyTorch for the current one takes longer than recording."""

    stream: torch.cuda.Stream

    def record(self, stream: Any = None) -> None:
        super().record(self.stream if stream is None else stream)


class Cuda:
    """The real runtime. Graphs share one memory pool, since they are replayed one after the other."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)
        self._pool: Any = None
        self._graph_bytes = 0

    def active(self) -> AbstractContextManager[None]:
        return torch.cuda.stream(self._stream)

    def catch_up(self) -> None:
        torch.cuda.synchronize(self.device)

    def event(self) -> Event:
        event = _StreamEvent(enable_timing=True)
        event.stream = self._stream
        return event

    def pinned(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def capture(self, function: Callable[[], T]) -> Recording[T]:
        self.catch_up()
        with self.active():
            for _ in range(_WARM_UPS):
                function()
        self.catch_up()
        torch.cuda.empty_cache()  # a capture does so at its start, and the bytes would count as freed by the graph
        before = torch.cuda.mem_get_info(self.device)[0]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            outputs = function()
        self._pool = graph.pool()
        self._graph_bytes += max(0, before - torch.cuda.mem_get_info(self.device)[0])
        return Recording(outputs, graph.replay)

    def graph_bytes(self) -> int:
        return self._graph_bytes

    def release(self) -> None:
        gc.collect()
        with suppress(torch.AcceleratorError):  # a device that failed keeps its memory until the process ends
            self.catch_up()
            torch.cuda.empty_cache()

"""The real runtime's bookkeeping, on a device whose memory is three numbers."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from aerie.engine.cuda import Cuda


class Memory:
    """A device with `free` bytes, and `cached` ones that the allocator keeps for itself until it is asked."""

    def __init__(self, free: int, cached: int) -> None:
        self.free, self.cached = free, cached

    def mem_get_info(self, _: Any) -> tuple[int, int]:
        return self.free, 1000

    def empty_cache(self) -> None:
        self.free, self.cached = self.free + self.cached, 0

    @contextmanager
    def capturing(self, *_: Any, **__: Any) -> Iterator[None]:
        """Empties the cache first, as torch.cuda.graph does; the graph takes 20 bytes."""
        self.empty_cache()
        yield
        self.free -= 20


def test_a_graph_s_bytes_do_not_count_what_the_cache_gave_back(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(free=100, cached=30)
    graph = SimpleNamespace(pool=lambda: 1, replay=lambda: None)
    for name, stand_in in {
        "Stream": lambda _: None,
        "stream": lambda _: nullcontext(),
        "synchronize": lambda _: None,
        "CUDAGraph": lambda: graph,
        "graph": memory.capturing,
        "mem_get_info": memory.mem_get_info,
        "empty_cache": memory.empty_cache,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    runtime = Cuda(torch.device("cuda", 0))
    assert runtime.capture(lambda: "answer").outputs == "answer"
    assert runtime.graph_bytes() == 20

"""The device time of a call, without the host's launch time: for choices between kernels, and for probes."""

import time
from collections.abc import Callable

import torch

from aerie.engine.cuda import Cuda

_CALLS = 10
"""Calls in a graph, which hide the launch time."""


def microseconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The median of `repeats`; on a GPU each is a replay of a graph of ten calls, as steps replay their graphs."""
    if device.type != "cuda":
        return _median([_wall(call) for _ in range(repeats)])
    runtime = Cuda(device)

    def several() -> None:
        for _ in range(_CALLS):
            call()

    with runtime.active():
        recorded = runtime.capture(several)
        runtime.catch_up()
        return _median([_replayed(runtime, recorded.replay) for _ in range(repeats)]) / _CALLS


def _replayed(runtime: Cuda, replay: Callable[[], None]) -> float:
    before, after = runtime.event(), runtime.event()
    before.record()
    replay()
    after.record()
    runtime.catch_up()
    return 1e3 * before.elapsed_time(after)


def _wall(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - began)


def _median(times: list[float]) -> float:
    return sorted(times)[len(times) // 2]

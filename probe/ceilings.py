"""What a device reaches: bytes per second of a kernel that copies, operations per second of a large product.

Published peaks are never reached, so the GPU probes report shares of the roofline against both.
"""

from functools import cache

import torch

from aerie.engine.cuda import Cuda
from aerie.engine.device_time import microseconds

_COPIED = {"cuda": 4 << 30, "cpu": 1 << 22}
"""Bytes, far more than any cache of a GPU holds. A CPU's figure only shows that the code runs."""
_SIDE = {"cuda": 8192, "cpu": 64}
_REPEATS = 5


@cache
def ceilings_of(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """Bytes per second, read and written bytes counted, and operations per second of a product in `dtype`.

    Measured once in a process, before a model takes the memory.
    """
    found = _bytes_per_second(device), _operations_per_second(device, dtype)
    if device.type == "cuda":
        Cuda(device).release()
    return found


def _bytes_per_second(device: torch.device) -> float:
    size = _COPIED[device.type]
    source = torch.zeros(size // 4, dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    # A recorded copy is left to the copy engine, which is slower than any kernel: 2.7 of 4.3 TB/s on an H200.
    return 2e6 * size / microseconds(lambda: torch.bitwise_not(source, out=target), device, _REPEATS)


def _operations_per_second(device: torch.device, dtype: torch.dtype) -> float:
    side = _SIDE[device.type]
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return 2e6 * side**3 / microseconds(lambda: left.mm(right), device, _REPEATS)

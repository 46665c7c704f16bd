"""Copies between host and device, once each way per step: a plan's arrays go in together, and results come out
together.

Both workers stage with `put` inside `together`, and pass their answer to `fetch`. Only the reader of a result waits for
the device, and only for that result.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

Words = NDArray[np.int32]
Fetch = Callable[[], Words]
"""Waits for a result and returns its words, which the caller owns."""


class Transfer(Protocol):
    """The device's side of a lane: `begin` a step, `put` its inputs, `fetch` its answer."""

    device: torch.device

    def begin(self) -> None:
        """Begins a step. At most two are in flight, so the inputs of the step before last are no longer needed."""

    def put(self, values: NDArray[Any], kind: DTypeLike = np.int64) -> Tensor:
        """The values on the device, as `kind`. Inside `together` they arrive at its end: launch nothing before."""

    def together(self) -> Any:
        """A context that sends all its `put`s in one copy."""

    def fetch(self, words: Tensor) -> Fetch:
        """Sends int32 words [n] to the host. Later work on the device does not delay them."""


class HostTransfer:
    """The device is the host: nothing is copied."""

    device = torch.device("cpu")

    def begin(self) -> None:
        """Keeps nothing between steps."""

    def put(self, values: NDArray[Any], kind: DTypeLike = np.int64) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=kind))

    @contextmanager
    def together(self) -> Iterator[None]:
        yield

    def fetch(self, words: Tensor) -> Fetch:
        return words.numpy

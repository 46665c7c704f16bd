"""Between host and device, once each way in a step: a plan's arrays go in together, and results come out together.

Both workers stage with `put` inside `together`, and hand `fetch` what they have to answer. Nothing here waits for the
device but the reader of a result, who waits for that result alone.
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
"""Waits for a result and gives its words; they are the caller's own."""


class Transfer(Protocol):
    """The device's side of a lane. `begin` a step, `put` what it needs, `fetch` what it answers."""

    device: torch.device

    def begin(self) -> None:
        """A new step. At most two are in flight, so what the step before last was given is not needed any more."""

    def put(self, values: NDArray[Any], kind: DTypeLike = np.int64) -> Tensor:
        """The values on the device, as `kind`. Inside `together` they arrive at its end: launch nothing before."""

    def together(self) -> Any:
        """A context whose `put`s are one copy."""

    def fetch(self, words: Tensor) -> Fetch:
        """Sends int32 words [n] to the host. Later work on the device does not delay them."""


class HostTransfer:
    """Where the device is the host: nothing moves."""

    device = torch.device("cpu")

    def begin(self) -> None:
        """Nothing is kept from step to step."""

    def put(self, values: NDArray[Any], kind: DTypeLike = np.int64) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=kind))

    @contextmanager
    def together(self) -> Iterator[None]:
        yield

    def fetch(self, words: Tensor) -> Fetch:
        return words.numpy

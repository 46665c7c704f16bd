"""Which functions run as kernels of Aerie's own: one switch of a process, set while a model is loaded.

A function in torch that has a kernel says so with `fusible`; the kernel takes the same arguments, and the function is
the twin that tests hold it to. `engine.kernels` chooses: `auto` takes what a committed measurement found faster on a
device of that name, `triton` takes every kernel, `torch` none.
"""

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

import torch

from contracts.errors import ConfigError
from engine.device import device_name

P = ParamSpec("P")
T = TypeVar("T")

PAYING: dict[str, frozenset[str]] = {}
"""By what a device's name contains: kernels that bench/results/gpu/kernels.json shows to be faster there in every case.
Empty until a GPU has run `make gpu-bench`.
"""


class Fusible(Generic[P, T]):
    """Called, it runs the twin, or the kernel where that was taken."""

    def __init__(self, twin: Callable[P, T], place: str) -> None:
        functools.update_wrapper(self, twin)
        self.name = twin.__name__
        self.twin = twin
        self._place = place
        self._run = twin

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(*args, **kwargs)

    @property
    def taken(self) -> bool:
        return self._run is not self.twin

    def kernel(self) -> Callable[P, T]:
        """Imports Triton."""
        return getattr(importlib.import_module(self._place), self.name)

    def take(self, fused: bool) -> None:
        self._run = self.kernel() if fused else self.twin


FUSIBLE: dict[str, Fusible] = {}
"""All of the modules that were imported, by name."""


def fusible(place: str) -> Callable[[Callable[P, T]], Fusible[P, T]]:
    """Decorates a twin; the module `place` has its kernel under the same name."""

    def with_kernel(twin: Callable[P, T]) -> Fusible[P, T]:
        made = Fusible(twin, place)
        FUSIBLE[made.name] = made
        return made

    return with_kernel


def take_kernels(setting: str, device: torch.device) -> None:
    """Sets every fusible function for steps on `device`. Raises ConfigError."""
    on_gpu = device.type == "cuda"
    if setting == "triton":
        _check(on_gpu)
    named = device_name(device) if on_gpu and setting == "auto" else ""
    paying = frozenset[str]().union(*(names for part, names in PAYING.items() if part in named))
    taken = sorted(FUSIBLE if setting == "triton" else paying & FUSIBLE.keys() if _installed() else ())
    for name, each in FUSIBLE.items():
        each.take(name in taken)


def taken_kernels() -> list[str]:
    return sorted(name for name, each in FUSIBLE.items() if each.taken)


def _check(on_gpu: bool) -> None:
    if not on_gpu:
        raise ConfigError(
            "engine.kernels is triton, which needs a GPU, and this deployment runs on a CPU; set engine.kernels=auto",
            param="engine.kernels",
        )
    if not _installed():
        raise ConfigError(
            "engine.kernels is triton, and the package triton is not installed; install aerie[gpu], or set "
            "engine.kernels=auto",
            param="engine.kernels",
        )


def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None

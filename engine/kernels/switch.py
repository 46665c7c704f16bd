"""Which functions run as kernels of Aerie's own: one switch of a process, set while a model is loaded.

A function in torch that has kernels says so with `fusible`; a kernel takes the same arguments, and the function is the
twin that tests hold it to. Kernels are written in Triton for GPUs and in C++ for CPUs. `engine.kernels` chooses: `auto`
takes every C++ kernel where they compile, and of the Triton ones what a committed measurement found faster on a GPU of
that name; `triton` and `cpp` take all of theirs, `torch` none.
"""

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Generic, ParamSpec, TypeVar

import torch

from contracts.errors import ConfigError
from engine.cpp.library import library_name, missing
from engine.device import device_name

P = ParamSpec("P")
T = TypeVar("T")

PAYING: dict[str, frozenset[str]] = {}
"""By what a device's name contains: kernels that bench/results/gpu/kernels.json shows to be faster there in every case.
Empty until a GPU has run `make gpu-bench`.
"""


class Fusible(Generic[P, T]):
    """Called, it runs the twin, or the kernel that was taken."""

    def __init__(self, twin: Callable[P, T], places: Mapping[str, str]) -> None:
        functools.update_wrapper(self, twin)
        self.name = twin.__name__
        self.twin = twin
        self._places = places
        self._run = twin
        self.language: str | None = None
        """Of the kernel that was taken."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(*args, **kwargs)

    @property
    def languages(self) -> frozenset[str]:
        return frozenset(self._places)

    def kernel(self, language: str) -> Callable[P, T]:
        """Imports what the language needs."""
        return getattr(importlib.import_module(self._places[language]), self.name)

    def take(self, language: str | None) -> None:
        self._run = self.twin if language is None else self.kernel(language)
        self.language = language


FUSIBLE: dict[str, Fusible] = {}
"""All of the modules that were imported, by name."""


def fusible(**places: str) -> Callable[[Callable[P, T]], Fusible[P, T]]:
    """Decorates a twin; by language, the module that has its kernel under the same name."""

    def with_kernels(twin: Callable[P, T]) -> Fusible[P, T]:
        made = Fusible(twin, places)
        FUSIBLE[made.name] = made
        return made

    return with_kernels


def take_kernels(setting: str, device: torch.device) -> None:
    """Sets every fusible function for steps on `device`, before a model is loaded for it. Raises ConfigError."""
    language = _language(setting, device)
    paying = _paying(device) if setting == "auto" and language == "triton" else FUSIBLE.keys()
    for name, each in FUSIBLE.items():
        each.take(language if language in each.languages and name in paying else None)


def taken_language() -> str | None:
    """`triton`, `cpp`, or None where every function is its twin."""
    return next((each.language for each in FUSIBLE.values() if each.language is not None), None)


def taken_kernels() -> list[str]:
    return sorted(name for name, each in FUSIBLE.items() if each.language is not None)


def triton_failures() -> tuple[type[Exception], ...]:
    """What is raised where a Triton kernel cannot be compiled or launched."""
    from triton.errors import TritonError

    return TritonError, RuntimeError


def kernels_report(setting: str, device: torch.device) -> str:
    """For people: what was taken, or why nothing was where it could have been."""
    language = taken_language()
    if language is not None:
        return f"{language}: {' '.join(taken_kernels())}"
    why = missing() if setting != "torch" and device.type == "cpu" else None
    return "none" if why is None else f"none: {why}"


def kernel_set() -> str:
    """What rounds: on another one, the last bits of a logit may differ."""
    language = taken_language()
    return library_name() if language == "cpp" else f"{language or 'torch'} {torch.__version__}"


def _language(setting: str, device: torch.device) -> str | None:
    on_gpu = device.type == "cuda"
    if setting == "torch":
        return None
    if setting == "auto":
        return _installed() if on_gpu else "cpp" if missing() is None else None
    if setting == "triton" and not on_gpu:
        raise _refused("triton, which needs a GPU, and this deployment runs on a CPU")
    if setting == "cpp" and on_gpu:
        raise _refused("cpp, whose kernels are a CPU's, and this deployment runs on a GPU")
    if setting == "triton" and _installed() is None:
        raise _refused("triton, and the package triton, which pip install -e '.[gpu]' brings, is not installed")
    if setting == "cpp" and (why := missing()) is not None:
        raise _refused(f"cpp, and {why}")
    return setting


def _refused(why: str) -> ConfigError:
    return ConfigError(f"engine.kernels is {why}; set engine.kernels=auto", param="engine.kernels")


def _paying(device: torch.device) -> frozenset[str]:
    named = device_name(device)
    return frozenset[str]().union(*(names for part, names in PAYING.items() if part in named))


def _installed() -> str | None:
    return None if importlib.util.find_spec("triton") is None else "triton"

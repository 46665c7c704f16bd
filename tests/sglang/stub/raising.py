"""Functions that stand in for compiled kernels and say so when they are called. Used by both `sgl_kernel` modules."""

from collections.abc import Callable
from typing import NoReturn


def raising(name: str) -> Callable[..., NoReturn]:
    """A function of that name that refuses to run. Raises AttributeError for a name that is not a kernel's."""
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} has no CPU build here; a test reached it by mistake")

    kernel.__name__ = name
    return kernel

"""Which implementation of each operation a worker runs: the reference in torch, or a kernel that replaces it.

A reference is an ordinary function that runs in torch. `kernels[reference]` is what a worker runs in its place, with
the same arguments and results. The set is chosen once, when a worker is built, and passed to all of its parts; two
workers of one process may have different sets.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kernels:
    language: str | None = None
    """`cpp` or `triton`; None if every operation runs its reference."""
    replaced: Mapping[Callable[..., Any], Callable[..., Any]] = field(default_factory=dict)
    """Maps each reference to the kernel that replaces it."""
    missing: str | None = None
    """Why a device that supports kernels has none."""
    name: str = f"torch {torch.__version__}"
    """Identifies the arithmetic: under another name, the last bits of a logit may differ."""
    products: object = "torch"
    """What multiplies by the weights; `str` gives it for users, once a model is loaded."""
    chosen: str | None = None
    """Why that was chosen, for users; None if there was no choice."""
    widens: bool = False
    """Whether they widen bf16 while they read it, so that a device without units for it computes it as fast as fp32."""

    def __getitem__(self, reference: Callable[P, T]) -> Callable[P, T]:
        return self.replaced.get(reference, reference)

    @property
    def report(self) -> str:
        """For users: the kernels, or why there are none."""
        if self.language is not None:
            return f"{self.language}: {' '.join(sorted(reference.__name__ for reference in self.replaced))}"
        return "none" if self.missing is None else f"none: {self.missing}"


REFERENCES = Kernels()
"""No kernels at all."""

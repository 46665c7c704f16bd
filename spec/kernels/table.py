"""The Triton kernels of a GPU by their references, and which of them `engine.kernels: auto` uses.

Called by the composition root while a model is loaded.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from aerie.contracts.errors import ConfigError
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.device import device_name
from aerie.engine.model.layer import gated, rotated
from aerie.engine.model.norm import normed
from aerie.engine.sampling.choose import choose, filtered
from aerie.engine.sampling.ending import cut
from aerie.engine.sampling.noise import gumbel
from aerie.spec.round.compact import compact
from aerie.spec.trees.accept import accept
from aerie.spec.trees.tree import select

PAYING: dict[str, frozenset[str]] = {}
"""By a part of a device's name: the kernels that bench/results/gpu/kernels.json shows to be faster there in every case.
Empty until `make gpu-bench` has run on a GPU.
"""


def triton_kernels() -> dict[Callable[..., Any], Callable[..., Any]]:
    """All Triton kernels by reference. Needs the package triton."""
    from aerie.engine.kernels import choose as choices
    from aerie.engine.kernels import ending, layer, noise
    from aerie.spec.kernels import compact as moves
    from aerie.spec.kernels import trees

    return {
        choose: choices.choose,
        filtered: choices.filtered,
        gumbel: noise.gumbel,
        cut: ending.cut,
        normed: layer.normed,
        rotated: layer.rotated,
        gated: layer.gated,
        compact: moves.compact,
        select: trees.select,
        accept: trees.accept,
    }


def choose_triton(setting: str, device: torch.device) -> Kernels:
    """A GPU's kernels by `engine.kernels`: all for `triton`, the faster ones for `auto`. Raises ConfigError."""
    if importlib.util.find_spec("triton") is None:
        if setting == "auto":
            return REFERENCES
        raise ConfigError(
            "engine.kernels is triton, and the package triton, which pip install -e '.[gpu]' brings, is not installed; "
            "set engine.kernels=auto",
            param="engine.kernels",
        )
    paying = _paying(device)
    taken = {
        reference: kernel
        for reference, kernel in triton_kernels().items()
        if setting == "triton" or reference.__name__ in paying
    }
    return Kernels("triton", taken, name=f"triton {torch.__version__}") if taken else REFERENCES


def _paying(device: torch.device) -> frozenset[str]:
    named = device_name(device)
    return frozenset[str]().union(*(names for part, names in PAYING.items() if part in named))


def triton_failures() -> tuple[type[Exception], ...]:
    """Exceptions raised if a Triton kernel cannot be compiled or launched."""
    from triton.errors import TritonError

    return TritonError, RuntimeError

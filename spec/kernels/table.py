"""The Triton kernels of a GPU by their references, and which of them `engine.kernels: auto` uses.

Called by the composition root while a model is loaded.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aerie.contracts.errors import ConfigError
from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.device import device_name
from aerie.engine.kernels.product_choice import SkinnyTrials
from aerie.engine.kernels.product_ways import Between, ByInductor, Way, by_library, by_torch
from aerie.engine.model.layer import gated, rotated
from aerie.engine.model.norm import RmsNorm, normed
from aerie.engine.model.packing import pack_int8
from aerie.engine.model.projection import skinny
from aerie.engine.sampling.choose import Needs, choose, filtered
from aerie.engine.sampling.ending import cut
from aerie.engine.sampling.noise import gumbel
from aerie.engine.state.row_tables import RowTables
from aerie.spec.round.compact import compact
from aerie.spec.trees.accept import accept
from aerie.spec.trees.tree import select

KINDS = ("greedy", "sampled", "filtered")
"""What a step's rows need of `choose`."""
PAYING: dict[str, frozenset[str]] = {
    "H200": frozenset({"accept", "compact", "cut", "gated", "gumbel", "normed", "rotated", "select"})
    | {f"choose {kind}" for kind in KINDS}
}
"""By a part of a device's name: the kernels that bench/results/gpu/kernels.json shows to be faster there in every case.
`choose` stands here by the kind of rows, as in "choose greedy", since each kind is another kernel.
"""

_EPS = 1e-5
"""Of the norm in a trial."""

Table = dict[Callable[..., Any], Callable[..., Any]]
"""Kernels by reference."""


def triton_kernels() -> Table:
    """All Triton kernels by reference. Needs the package triton."""
    from aerie.engine.kernels import choose as choices
    from aerie.engine.kernels import ending, layer, noise
    from aerie.engine.kernels.int8_products import Int8Weights
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
        pack_int8: lambda matrix: Int8Weights(matrix.integers, matrix.scales),
    }


def choose_triton(setting: str, device: torch.device, *, products: str = "auto") -> Kernels:
    """A GPU's kernels by `engine.kernels`: all for `triton`, the faster ones for `auto`. `products` is engine.products:
    unless it is `library`, what multiplies few tokens is chosen by trials. Raises ConfigError.
    """
    if importlib.util.find_spec("triton") is None:
        if setting == "auto":
            return REFERENCES
        raise ConfigError(
            "engine.kernels is triton, and the package triton, which pip install -e '.[gpu]' brings, is not installed; "
            "set engine.kernels=auto",
            param="engine.kernels",
        )
    kernels = triton_kernels()
    if setting == "auto":
        kernels = faster_kernels(kernels, _paying(device))
    multiplied: object = "library"
    if products != "library":
        gate, own = kernels.get(gated, gated), Kernels("triton", dict(kernels))
        ways = _ways(gate, compiled=products == "inductor")
        multiplied = kernels[skinny] = SkinnyTrials(
            ways, Between(by_torch, gate), lambda weight: RmsNorm(weight, _EPS, own)
        )
    if not kernels:
        return REFERENCES
    return Kernels("triton", kernels, name=f"triton {torch.__version__}", products=multiplied)


def _ways(gate: Callable[[Tensor], Tensor], *, compiled: bool) -> dict[str, Way]:
    """To multiply few tokens, beside what PyTorch takes by itself."""
    ways: dict[str, Way] = {"cublaslt": Between(by_library("cublaslt"), gate), "triton": _triton_product()}
    return ways | {"inductor": Between(ByInductor(), gate)} if compiled else ways


def _triton_product() -> Way:
    from aerie.engine.kernels.products import multiply

    return multiply


def faster_kernels(kernels: Table, paying: frozenset[str]) -> Table:
    """Those of `kernels` that `paying` names."""
    taken = {reference: kernel for reference, kernel in kernels.items() if reference.__name__ in paying}
    kinds = frozenset(kind for kind in KINDS if f"choose {kind}" in paying)
    if kinds:
        taken[choose] = _by_kind(kernels[choose], kinds)
    return taken


def _by_kind(kernel: Callable[..., Tensor], kinds: frozenset[str]) -> Callable[..., Tensor]:
    """`choose` by `kernel` in steps whose rows are of `kinds`, else by the reference."""

    def chosen(
        logits: Tensor, rows: Tensor, positions: Tensor, tables: RowTables, needs: Needs, **given: Tensor | None
    ) -> Tensor:
        kind = "greedy" if not needs.noise else "filtered" if needs.filters else "sampled"
        return (kernel if kind in kinds else choose)(logits, rows, positions, tables, needs, **given)

    return chosen


def _paying(device: torch.device) -> frozenset[str]:
    named = device_name(device)
    return frozenset[str]().union(*(names for part, names in PAYING.items() if part in named))

"""The layouts of a matrix that `aerie probe kernels` compares: Aerie's, in tiles of each size, and those of torch."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from aerie.engine.model.packing import HalfPacked
from aerie.native.library import library, missing
from aerie.native.trials import FP16, PANELS, PanelTrial, TorchTrial, tile_sizes


def is_ours(layout: str) -> bool:
    return layout.startswith(PANELS)


def bytes_of(layout: str) -> int:
    """Of a weight."""
    return 2 if layout == FP16 or is_ours(layout) else 4


def tiled(rows: int) -> str:
    """The name of Aerie's own layout in tiles of up to so many tokens."""
    return f"{PANELS} in tiles of {rows}"


@dataclass(frozen=True, slots=True)
class Tiled:
    """Aerie's own products in tiles of up to so many tokens."""

    trial: PanelTrial
    rows: int

    def prepare(self, tokens: int) -> Callable[[], None]:
        run = self.trial.prepare(tokens)

        def tiled() -> None:
            library().use_tile_rows(self.rows)
            run()

        return tiled


Layout = TorchTrial | Tiled


def layouts_of(weights: list[Tensor], *, fp16: bool) -> dict[str, Layout]:
    """By name, all that are here. `fp16` is whether FBGEMM's, which needs AVX2, may be."""
    layouts: dict[str, Layout] = {
        "rows": TorchTrial([_product(weight.t()) for weight in weights], weights),
        "columns": TorchTrial([_product(weight.t().contiguous()) for weight in weights], weights),
    }
    if fp16 and (packed := [form for form in map(HalfPacked.of, weights) if form is not None]):
        layouts[FP16] = TorchTrial([partial(form, bias=None) for form in packed], weights)
    with suppress(RuntimeError, AttributeError):  # a torch without MKL
        layouts["mkl"] = TorchTrial([_MklPacked(weight) for weight in weights], weights)
    if missing() is None:
        panels = PanelTrial(weights)
        layouts |= {tiled(rows): Tiled(panels, rows) for rows in tile_sizes()}
    return layouts


def _product(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: x.mm(matrix)


class _MklPacked:
    """MKL's packed form, which is for one number of tokens."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        self._packed: tuple[int, Tensor] = (1, self._pack(1))

    def _pack(self, tokens: int) -> Tensor:
        packed: Tensor = torch.ops.mkl._mkl_reorder_linear_weight(self._weight.to_mkldnn(), tokens)
        return packed

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] != self._packed[0]:
            self._packed = (x.shape[0], self._pack(x.shape[0]))
        product: Tensor = torch.ops.mkl._mkl_linear(x, self._packed[1], self._weight, None, x.shape[0])
        return product

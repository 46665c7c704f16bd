"""The layouts of a matrix that `aerie probe kernels` compares: Aerie's, read near and far ahead, and those of torch. A
matrix has bf16 weights, or 8-bit integers with a scale for each output, as `model.quantization: int8` serves them.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from aerie.engine.model.matrix import Matrix, Rounded
from aerie.engine.model.packing import HalfPacked, Int8Packed
from aerie.native.library import library, missing
from aerie.native.products import Multiplier
from aerie.native.trials import AMX, DOTS, FP16, PANELS, PanelTrial, TorchTrial, reaches

BF16, INT8 = "bf16", "int8"
"""Precisions of weights, and of torch's products whose inputs are bf16, too."""
_BYTES = {INT8: 1, BF16: 2, FP16: 2}
"""Of a weight, in layouts of torch that hold less than fp32."""

Product = Callable[[Tensor], Tensor]


def is_ours(layout: str) -> bool:
    return layout.startswith((PANELS, DOTS, AMX))


def product_of(layout: str) -> str:
    """Which of Aerie's products a layout of its own is for."""
    return layout.split(maxsplit=1)[0]


def bytes_of(layout: str, precision: str) -> int:
    """Of a weight."""
    return _BYTES[precision] if is_ours(layout) else _BYTES.get(layout, 4)


def named(product: str, *, far: bool) -> str:
    """The name of a layout of Aerie's own."""
    return f"{product} far ahead" if far else product


@dataclass(frozen=True, slots=True)
class Ahead:
    """Aerie's own products that read weights near or far ahead."""

    trial: PanelTrial
    far: bool

    def prepare(self, tokens: int) -> Callable[[], None]:
        run = self.trial.prepare(tokens)

        def ahead() -> None:
            library().read_far_ahead(self.far)
            run()

        return ahead


Layout = TorchTrial | Ahead


def layouts_of(weights: list[Matrix], own: Mapping[str, Multiplier], *, fp16: bool) -> dict[str, Layout]:
    """By name, all that are here: of Aerie's those of `own`. `fp16` is whether FBGEMM's, which needs AVX2, may be. Each
    has weights of its own: what runs next over the same ones would find them in a cache.
    """
    forms = [torch_products(weight, fp16=fp16) for weight in weights]
    layouts: dict[str, Layout] = {
        name: TorchTrial([form[name] for form in forms], weights, dtype=input_dtype(name))
        for name in forms[0]
        if all(name in form for form in forms)
    }
    if missing() is None:
        for product, multiplier in own.items():
            for far in reaches(product):
                layouts[named(product, far=far)] = Ahead(PanelTrial(weights, multiplier), far)
    return layouts


def input_dtype(name: str) -> torch.dtype:
    """Of torch's product of this name; Aerie's take fp32, and those for dot products round it themselves."""
    return torch.bfloat16 if name in (BF16, INT8) else torch.float32


def torch_products(weight: Matrix, *, fp16: bool) -> dict[str, Product]:
    """torch's products with W [out, in] by their names, x [tokens, in] -> x W^T [tokens, out]. Integers are multiplied
    by their scales beforehand, but in `fp16` and `int8`.
    """
    wide = weight.weight.float() if isinstance(weight, Rounded) else weight
    found = {
        "rows": _product(wide.t()),
        "columns": _product(wide.t().contiguous()),
        BF16: _product(wide.bfloat16().t()),
    }
    if fp16 and (half := _half(weight)) is not None:
        found[FP16] = half
    with suppress(RuntimeError, AttributeError):  # a torch without MKL
        found["mkl"] = _MklPacked(wide)
    if isinstance(weight, Rounded):
        with suppress(RuntimeError, AttributeError):  # a torch, or a CPU, without it
            found[INT8] = _integers(weight)
    return found


def _product(matrix: Tensor) -> Product:
    return lambda x: x.mm(matrix)


def _half(weight: Matrix) -> Product | None:
    """FBGEMM's; None if it is not here, or if fp16 does not hold the weights."""
    if isinstance(weight, Tensor):
        packed = HalfPacked.of(weight)
        return None if packed is None else partial(packed, bias=None)
    here = HalfPacked.of(weight.integers[:1].float()) is not None
    return partial(Int8Packed(weight), bias=None) if here else None


def _integers(weight: Rounded) -> Product:
    """In bf16, for which torch has kernels: in fp32 it multiplies one number after the other."""
    integers, scales = weight.integers, weight.scales.bfloat16()

    def product(x: Tensor) -> Tensor:
        found: Tensor = torch._weight_int8pack_mm(x, integers, scales)
        return found

    product(torch.zeros(1, weight.shape[1], dtype=torch.bfloat16))
    return product


class _MklPacked:
    """MKL's packed form, one for each number of tokens."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        self._packed = {1: self._pack(1)}

    def _pack(self, tokens: int) -> Tensor:
        packed: Tensor = torch.ops.mkl._mkl_reorder_linear_weight(self._weight.to_mkldnn(), tokens)
        return packed

    def __call__(self, x: Tensor) -> Tensor:
        tokens = x.shape[0]
        if tokens not in self._packed:
            self._packed[tokens] = self._pack(tokens)
        product: Tensor = torch.ops.mkl._mkl_linear(x, self._packed[tokens], self._weight, None, tokens)
        return product

"""Weights packed in 16 bits for a CPU's fp32 arithmetic, where they are 16-bit numbers anyway.

Called while a model loads. The packed form is Aerie's own (engine/cpp/products.py) where C++ kernels were taken, else
that of `torch.fbgemm_linear_fp16_weight_fp32_activation`.
"""

import warnings
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.cpp.products import Panels
from engine.kernels.switch import taken_language

_LARGEST = 127
_HALF_STEP = 2.0**-25
"""Half the distance of the smallest fp16 numbers: the most that packing may move a weight by."""


class Packed(Protocol):
    """A packed W [out, in]; inputs are [tokens, in]."""

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b"""

    def add_to(self, residual: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """Adds x W^T + b to `residual` [tokens, out] in place, and returns it."""

    @property
    def weight(self) -> Tensor:
        """[out, in], a copy in fp32."""

    @property
    def bytes(self) -> int: ...


def pack(weight: Tensor) -> Packed | None:
    """None where packing does not pay, would change the weights, or this torch cannot do it."""
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    panels = exact_panels(weight) if taken_language() == "cpp" else None
    return panels or (HalfPacked.of(weight) if weight.dtype == torch.float32 else None)


def exact_panels(weight: Tensor) -> Packed | None:
    """For the C++ product; None where a weight is no bf16 number."""
    halves = weight.bfloat16()
    return Panels(halves) if torch.equal(halves.float(), weight.float()) else None


def rounded_panels(weight: Tensor) -> Packed:
    """For the C++ product, as 8-bit integers: the largest weight of an output is 127 of its scale."""
    scales = (weight.abs().amax(1) / _LARGEST).clamp_(min=torch.finfo(torch.float32).tiny)
    return Panels((weight / scales[:, None]).round_().to(torch.int8), scales)


class HalfPacked:
    """fp16, by FBGEMM."""

    def __init__(self, packed: Any, size: torch.Size) -> None:
        self._packed, self._size = packed, size

    @classmethod
    def of(cls, weight: Tensor) -> "HalfPacked | None":
        """None where the weights do not fit, or this torch or CPU cannot do it."""
        if not hasattr(torch, "fbgemm_linear_fp16_weight_fp32_activation") or not _fits(weight):
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # both functions say once that a later torch may not have them
            try:
                packed = torch.fbgemm_pack_gemm_matrix_fp16(weight.contiguous())
                torch.fbgemm_linear_fp16_weight_fp32_activation(weight[:1], packed, None)
            except RuntimeError:  # a CPU that fbgemm does not know
                return None
        return cls(packed, weight.shape)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return torch.fbgemm_linear_fp16_weight_fp32_activation(x, self._packed, bias)

    def add_to(self, residual: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        return residual.add_(self(x, bias))

    @property
    def weight(self) -> Tensor:
        """What is packed is read off by sending the identity through."""
        return self(torch.eye(self._size[1]), None).t()

    @property
    def bytes(self) -> int:
        return 2 * self._size.numel()


def _fits(weight: Tensor) -> bool:
    return bool(((weight.half().float() - weight).abs() <= _HALF_STEP).all())

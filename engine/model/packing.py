"""Packs weights for a CPU's fp32 arithmetic: in 16 bits if they are 16-bit numbers anyway, in 8 if they are rounded.

Called while a model loads. The packed form is that of `torch.fbgemm_linear_fp16_weight_fp32_activation`, unless a
worker's kernels replace it.
"""

import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from aerie.engine.model.matrix import Rounded

_HALF_STEP = 2.0**-25
"""Half the distance of the smallest fp16 numbers: the most that packing may change a weight by."""


class Packed(Protocol):
    """A packed W [out, in]; inputs are [tokens, in]."""

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b [tokens, out]; the bias is [out]."""

    def add_to(self, residual: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """Adds x W^T + b to `residual` [tokens, out] in place, and returns it."""

    @property
    def weight(self) -> Tensor:
        """[out, in], a copy in fp32."""

    @property
    def bytes(self) -> int: ...


def pack(weight: Tensor) -> Packed | None:
    """weight [out, in]. None if packing does not pay, would change the weights, or is not supported by this torch."""
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    return HalfPacked.of(weight) if weight.dtype == torch.float32 else None


def int8_pays(shapes: Sequence[tuple[int, int]]) -> bool:
    """Whether matrices [out, in] are multiplied faster in 8 bits than as they are stored: not by torch."""
    return False


def pack_int8(matrix: Rounded) -> Packed:
    """8-bit integers and their scales."""
    return Int8Packed(matrix)


class Int8Packed:
    """Multiplies the integers in fp32, and their sums by the scales. Torch has no such product of 8-bit integers, so
    they are packed as fp16 numbers, which all of them are.
    """

    def __init__(self, matrix: Rounded) -> None:
        self._scales = matrix.scales
        on_cpu = matrix.device.type == "cpu"
        self._halves = HalfPacked.of(matrix.integers.float()) if on_cpu else None
        self._integers = matrix.integers if self._halves is None else None

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self._halves is not None:
            sums = self._halves(x.float(), None)  # [tokens, out]
        else:
            assert self._integers is not None
            sums = x.float().mm(self._integers.float().t())
        product = sums.mul_(self._scales)
        return (product if bias is None else product.add_(bias)).to(x.dtype)

    def add_to(self, residual: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        return residual.add_(self(x, bias))

    @property
    def weight(self) -> Tensor:
        if self._halves is not None:
            return self._halves.weight * self._scales[:, None]
        assert self._integers is not None
        return self._integers.float() * self._scales[:, None]

    @property
    def bytes(self) -> int:
        if self._halves is not None:
            weights = self._halves.bytes
        else:
            assert self._integers is not None
            weights = self._integers.numel()
        return weights + self._scales.numel() * self._scales.element_size()


class HalfPacked:
    """fp16, multiplied by FBGEMM."""

    def __init__(self, packed: Any, size: torch.Size) -> None:
        self._packed, self._size = packed, size

    @classmethod
    def of(cls, weight: Tensor) -> "HalfPacked | None":
        """None if the weights do not fit in fp16, or if this torch or CPU does not support it."""
        if not hasattr(torch, "fbgemm_linear_fp16_weight_fp32_activation") or not _fits(weight):
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # both functions warn once that a later torch may drop them
            try:
                packed = torch.fbgemm_pack_gemm_matrix_fp16(weight.contiguous())
                torch.fbgemm_linear_fp16_weight_fp32_activation(weight[:1], packed, None)
            except RuntimeError:  # FBGEMM does not support this CPU
                return None
        return cls(packed, weight.shape)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return torch.fbgemm_linear_fp16_weight_fp32_activation(x, self._packed, bias)

    def add_to(self, residual: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        return residual.add_(self(x, bias))

    @property
    def weight(self) -> Tensor:
        """Recovers the weights by multiplying with the identity."""
        return self(torch.eye(self._size[1]), None).t()  # [in, out], transposed

    @property
    def bytes(self) -> int:
        return 2 * self._size.numel()


def _fits(weight: Tensor) -> bool:
    return bool(((weight.half().float() - weight).abs() <= _HALF_STEP).all())

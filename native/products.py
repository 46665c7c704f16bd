"""A matrix in panels for the C++ product (src/products.cpp): 8 or 16 bits per weight, widened in registers, or pairs of
bf16 weights for dot products of bf16 and for AMX.
"""

import ctypes
from collections.abc import Callable
from ctypes import c_int32, c_long, c_void_p
from enum import IntEnum

import torch
from torch import Tensor

from aerie.engine.model import packing
from aerie.engine.model.matrix import Rounded
from aerie.engine.model.packing import Packed
from aerie.engine.model.projection import Projection
from aerie.native.library import library
from aerie.native.march import cpu_features
from aerie.native.pages import WEIGHTS, LargePages


class Matrix(ctypes.Structure):
    """A matrix as kernels read it (src/kernels.h)."""

    _fields_ = (
        *((name, c_void_p) for name in ("panels", "scales", "bias")),
        *((name, c_long) for name in ("outputs", "inputs")),
        ("multiplier", c_int32),
    )


class Multiplier(IntEnum):
    """What multiplies by a matrix. All but the first have panels of pairs of bf16 inputs."""

    FP32 = 0
    """Weights are widened to fp32."""
    DOTS = 1
    """Dot products of bf16, for which activations are rounded."""
    AMX = 2
    """AMX, with each activation as the sum of three numbers of bf16."""
    AMX_BF16 = 3
    """AMX, for which activations are rounded."""

    @property
    def inputs(self) -> int:
        """A multiple of it is stored."""
        return {Multiplier.FP32: 1, Multiplier.DOTS: 2}.get(self, 32)

    @property
    def parts(self) -> int:
        """Numbers of bf16 that an activation is multiplied as."""
        return 3 if self is Multiplier.AMX else 1


def dots_here() -> bool:
    """Whether this CPU and the library for it have dot products of bf16."""
    return "avx512_bf16" in (cpu_features() or ()) and bool(library().has_dots())


def amx_here() -> bool:
    """Whether this CPU, the library for it and the system have AMX's tiles of bf16."""
    return {"amx_tile", "amx_bf16", "avx512_bf16"} <= (cpu_features() or frozenset()) and bool(library().permit_amx())


def pack(weight: Tensor) -> Packed | None:
    """Replaces engine.model.packing.pack: panels if every weight is a bf16 number."""
    return _packed(weight, Multiplier.FP32)


def pack_dots(weight: Tensor) -> Packed | None:
    """The same, but weights that are served in bf16 are packed for dot products, which round activations to bf16."""
    return _packed(weight, Multiplier.DOTS if weight.dtype == torch.bfloat16 else Multiplier.FP32)


def pack_amx(weight: Tensor) -> Packed | None:
    """The same for AMX, which rounds the activations of weights that are served in bf16, and no others."""
    return _packed(weight, Multiplier.AMX_BF16 if weight.dtype == torch.bfloat16 else Multiplier.AMX)


def _packed(weight: Tensor, multiplier: Multiplier) -> Packed | None:
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    halves = weight.bfloat16()
    exact = torch.equal(halves.float(), weight.float())
    return Panels(halves, multiplier=multiplier) if exact else packing.pack(weight)


def pack_int8(matrix: Rounded) -> Packed:
    """Replaces engine.model.packing.pack_int8."""
    return Panels(matrix.integers, matrix.scales)


def pack_int8_for(multiplier: Multiplier) -> Callable[[Rounded], Packed]:
    """The same, where `multiplier` serves a model."""
    return lambda matrix: Panels(matrix.integers, matrix.scales, multiplier=multiplier)


def matrix_of(projection: Projection, tokens: int) -> Matrix | None:
    """The matrix of `projection` for `tokens` tokens; None if a kernel must not use it."""
    if tokens > projection.few or not isinstance(projection.packed, Panels):
        return None
    return projection.packed.matrix(projection.packed_bias)


class Panels:
    """W [out, in] of bf16 numbers, or of 8-bit integers with `scales` [out], as panels of as many outputs as the
    library computes at once, [out / panel, in, panel]. The last panel is padded with zeros. In bf16, the two halves of
    a panel's outputs are interleaved; but for FP32, inputs are, in pairs, [out / panel, in / 2, panel, 2], and padded
    with zeros; of integers, [out / panel, in / 2, 2, 2, panel / 2], by halves of outputs and then by inputs of a pair.
    """

    def __init__(
        self,
        weight: Tensor,
        scales: Tensor | None = None,
        *,
        multiplier: Multiplier = Multiplier.FP32,
        pages: LargePages = WEIGHTS,
    ) -> None:
        if multiplier in (Multiplier.AMX, Multiplier.AMX_BF16):
            assert amx_here()  # a process asks for AMX before it uses it
        self._outputs, self._inputs = weight.shape
        self._multiplier = multiplier
        panel = library().panel_size()
        filled = torch.nn.functional.pad(weight, (0, -self._inputs % multiplier.inputs, 0, -self._outputs % panel))
        if multiplier is not Multiplier.FP32 and scales is not None:
            panels = filled.view(-1, 2, panel // 2, filled.shape[1] // 2, 2).permute(0, 3, 1, 4, 2)
        elif multiplier is not Multiplier.FP32:
            panels = filled.view(-1, panel, filled.shape[1] // 2, 2).transpose(1, 2)
        elif scales is None:
            panels = filled.view(-1, 2, panel // 2, self._inputs).permute(0, 3, 2, 1)
        else:
            panels = filled.view(-1, 2, panel // 2, self._inputs).permute(0, 3, 1, 2)
        self._panels = pages.keep(panels)
        self._scales = None
        if scales is not None:
            self._scales = torch.nn.functional.pad(scales, (0, -self._outputs % panel))

    def matrix(self, bias: Tensor | None) -> Matrix:
        """As kernels read it, with `bias` [out]. It is valid as long as both exist."""
        scales = None if self._scales is None else self._scales.data_ptr()
        own_bias = None if bias is None else bias.data_ptr()
        return Matrix(self._panels.data_ptr(), scales, own_bias, self._outputs, self._inputs, self._multiplier)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [tokens, in] of fp32 or bf16 -> x W^T + b in the same dtype"""
        out = torch.empty(x.shape[0], self._outputs)
        self._run(out, x.float(), bias, adds=False)
        return out.to(x.dtype)

    def add_to(self, residual: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """Adds x W^T + b to `residual` [tokens, out], contiguous, in place, and returns it."""
        wide = residual.float()
        self._run(wide, x.float(), bias, adds=True)
        return residual if wide is residual else residual.copy_(wide)

    def _run(self, out: Tensor, x: Tensor, bias: Tensor | None, *, adds: bool) -> None:
        x, matrix = x.contiguous(), ctypes.byref(self.matrix(bias))
        library().multiplied(out.data_ptr(), x.data_ptr(), matrix, x.shape[0], adds)

    @property
    def weight(self) -> Tensor:
        """[out, in], a copy."""
        if self._multiplier is not Multiplier.FP32:
            pairs = self._panels if self._scales is None else self._panels.transpose(3, 4).flatten(2, 3)
            rows = pairs.transpose(1, 2).flatten(2)  # [out / panel, panel, in]
        else:
            halves = self._panels if self._scales is not None else self._panels.transpose(2, 3)
            rows = halves.permute(0, 2, 3, 1)
        weight = rows.reshape(-1, rows.shape[-1])[: self._outputs, : self._inputs].float()
        return weight if self._scales is None else weight * self._scales[: self._outputs, None]

    @property
    def bytes(self) -> int:
        tensors = [tensor for tensor in (self._panels, self._scales) if tensor is not None]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

"""A matrix in panels for the C++ product (src/products.cpp): 8 or 16 bits per weight, widened in registers."""

import torch
from torch import Tensor

from aerie.engine.model import packing
from aerie.engine.model.matrix import Rounded
from aerie.engine.model.packing import Packed
from aerie.engine.model.projection import Projection
from aerie.native.library import library
from aerie.native.pages import WEIGHTS, LargePages


def pack(weight: Tensor) -> Packed | None:
    """Replaces engine.model.packing.pack: panels if every weight is a bf16 number."""
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    halves = weight.bfloat16()
    return Panels(halves) if torch.equal(halves.float(), weight.float()) else packing.pack(weight)


def pack_int8(matrix: Rounded) -> Packed:
    """Replaces engine.model.packing.pack_int8."""
    return Panels(matrix.integers, matrix.scales)


def addresses_of(projection: Projection, tokens: int) -> tuple[int | None, ...] | None:
    """Addresses of panels, scales and bias for `tokens` tokens; None if a kernel must not use them."""
    packed, bias = projection.packed, projection.packed_bias
    if tokens > projection.few or not isinstance(packed, Panels):
        return None
    return *packed.addresses, None if bias is None else bias.data_ptr()


class Panels:
    """W [out, in] of bf16 numbers, or of 8-bit integers with `scales` [out], as panels of as many outputs as the
    library computes at once, [out / panel, in, panel]. The last panel is padded with zeros. In bf16, the two halves of
    a panel's outputs are interleaved.
    """

    def __init__(self, weight: Tensor, scales: Tensor | None = None, *, pages: LargePages = WEIGHTS) -> None:
        self._outputs, self._inputs = weight.shape
        panel = library().panel_size()
        filled = torch.nn.functional.pad(weight, (0, 0, 0, -self._outputs % panel))
        panels = filled.view(-1, 2, panel // 2, self._inputs).permute(0, 3, 1, 2)
        self._panels = pages.keep(panels if scales is not None else panels.transpose(2, 3))
        self._scales = None
        if scales is not None:
            self._scales = torch.nn.functional.pad(scales, (0, -self._outputs % panel))
        self.addresses: tuple[int, int | None] = (
            self._panels.data_ptr(),
            None if self._scales is None else self._scales.data_ptr(),
        )

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
        x = x.contiguous()
        library().multiplied(
            out.data_ptr(),
            x.data_ptr(),
            *self.addresses,
            None if bias is None else bias.data_ptr(),
            x.shape[0],
            self._outputs,
            self._inputs,
            adds,
        )

    @property
    def weight(self) -> Tensor:
        """[out, in], a copy."""
        panels = self._panels if self._scales is not None else self._panels.transpose(2, 3)
        weight = panels.permute(0, 2, 3, 1).reshape(-1, self._inputs)[: self._outputs].float()
        return weight if self._scales is None else weight * self._scales[: self._outputs, None]

    @property
    def bytes(self) -> int:
        tensors = [tensor for tensor in (self._panels, self._scales) if tensor is not None]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

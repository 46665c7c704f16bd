"""A weight matrix in the layout that this machine multiplies fastest."""

from collections.abc import Container
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor

from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.model.matrix import Matrix, Rounded, rounded
from aerie.engine.model.packing import Packed, pack, pack_int8

_ALL = 1 << 62


class Precision(Enum):
    """What a projection does with the weights that it is made from."""

    STORED = "stored"
    """Keeps them."""
    INT8 = "int8"
    """Rounds them to 8 bits."""


class Skinny(Protocol):
    """A product for few tokens, by a 16-bit matrix [out, in] that has no bias."""

    @property
    def counts(self) -> Container[int]:
        """The numbers of tokens that it is meant for."""

    def times(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """x W^T [tokens, out], in x's dtype or `dtype`."""

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Adds x W^T to `residual` [tokens, out] in place, and returns it."""


def skinny(weight: Tensor) -> Skinny | None:
    """What multiplies few tokens by `weight` [out, in] faster than the library does; None if nothing does."""
    return None


class Projection:
    """`weight` [out, in] and `bias` [out] of a linear map; inputs are [tokens, in].

    In fp32 on a CPU the matrix is stored by column. Weights that are 16-bit numbers anyway, such as those of a bf16
    checkpoint, are packed in 16 bits and widened while they are read: fp32 arithmetic on half the bytes. One form
    serves any number of tokens, so that a token's result does not depend on how many there are
    (docs/decisions/0005-packed-weights.md). Weights rounded to 8 bits have the packed form only. On a GPU, kernels may
    multiply few tokens by 16-bit weights in place of the library.
    """

    def __init__(
        self,
        weight: Matrix,
        bias: Tensor | None = None,
        kernels: Kernels = REFERENCES,
        precision: Precision = Precision.STORED,
    ) -> None:
        if precision is Precision.INT8:
            weight = rounded(weight)
        self.device = weight.device
        self.shape = weight.shape
        self._bias = bias
        self.packed_bias = None if bias is None else bias.float()
        self._dtype = weight.dtype
        self.packed: Packed | None = None
        """The packed form, if there is one."""
        self._matrix: Tensor | None = None  # [in, out]
        if isinstance(weight, Rounded):
            self.packed = kernels[pack_int8](weight)
        else:
            self.packed = kernels[pack](weight)
            if self.packed is None:
                by_columns = weight.dtype == torch.float32 and weight.device.type == "cpu"
                self._matrix = weight.t().contiguous() if by_columns else weight.t()
        self._widens = (
            self._matrix is not None
            and bias is None
            and weight.device.type == "cuda"
            and weight.dtype in (torch.bfloat16, torch.float16)
        )
        plain = self._matrix is not None and bias is None
        self._skinny = kernels[skinny](self.weight) if plain and weight.device.type == "cuda" else None
        self.few = 0 if self.packed is None else _ALL
        """Up to so many tokens the packed form is read."""

    def __call__(self, x: Tensor) -> Tensor:
        """x W^T + b [tokens, out]"""
        if self.packed is not None and x.shape[0] <= self.few:
            return self.packed(x, self.packed_bias)
        if self._skinny is not None and x.shape[0] in self._skinny.counts:
            return self._skinny.times(x)
        assert self._matrix is not None
        return x.mm(self._matrix) if self._bias is None else torch.addmm(self._bias, x, self._matrix)

    def wide(self, x: Tensor) -> Tensor:
        """x W^T + b in fp32. A GPU adds up 16-bit products in fp32: here they stay so, unrounded, so that logits have
        no ties of 16 bits and no second pass widens them.
        """
        if self._skinny is not None and x.shape[0] in self._skinny.counts:
            return self._skinny.times(x, torch.float32)
        if self._widens:
            assert self._matrix is not None
            return torch.mm(x, self._matrix, out_dtype=torch.float32)
        return self(x).float()

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Adds x W^T + b to `residual` [tokens, out] in place, and returns it."""
        if self.packed is not None and x.shape[0] <= self.few:
            return self.packed.add_to(residual, x, self.packed_bias)
        if self._skinny is not None and x.shape[0] in self._skinny.counts:
            return self._skinny.add_to(residual, x)
        assert self._matrix is not None
        residual.addmm_(x, self._matrix)
        return residual if self._bias is None else residual.add_(self._bias)

    @property
    def weight(self) -> Tensor:
        """[out, in], read-only."""
        if self._matrix is not None:
            return self._matrix.t()
        assert self.packed is not None
        return self.packed.weight.to(self._dtype)

    def shares(self, weight: Tensor) -> bool:
        """Whether this stores `weight` itself, not a copy in another layout."""
        return self._matrix is not None and self._matrix.data_ptr() == weight.data_ptr()

    @property
    def bytes(self) -> int:
        """Bytes of the weights as stored, in both forms if there are two."""
        held = [tensor for tensor in (self._matrix, self._bias) if tensor is not None]
        packed = 0 if self.packed is None else self.packed.bytes
        return packed + sum(tensor.numel() * tensor.element_size() for tensor in held)

"""A weight matrix in the layout that this machine multiplies fastest."""

from collections.abc import Callable, Container
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor

from aerie.engine.bindings import REFERENCES, Kernels
from aerie.engine.kernels.uses import Norm, Use
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
    def use(self) -> Use: ...

    @property
    def counts(self) -> Container[int]:
        """The numbers of tokens that it is meant for."""

    def __call__(self, x: Tensor, *, norm: Norm | None = None, residual: Tensor | None = None) -> Tensor:
        """x [tokens, in], `norm` and `residual` [tokens, out] as its use has them -> what its use makes of x W^T."""


def skinny(weight: Tensor, use: Use) -> Skinny | None:
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
        use: Use = Use.PLAIN,
    ) -> None:
        """`use`: how it is called most, which decides what kernels for few tokens are tried with."""
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
        self._skinny = kernels[skinny](self.weight, use) if plain and weight.device.type == "cuda" else None
        self.few = 0 if self.packed is None else _ALL
        """Up to so many tokens the packed form is read."""

    def __call__(self, x: Tensor, norm: Norm | None = None) -> Tensor:
        """x W^T + b [tokens, out]; `norm` is applied to x before."""
        few = self._few(x, Use.PLAIN if norm is None else Use.NORMED)
        if few is not None:
            return few(x, norm=norm)
        if norm is not None:
            x = norm(x)
        if self.packed is not None and x.shape[0] <= self.few:
            return self.packed(x, self.packed_bias)
        assert self._matrix is not None
        return x.mm(self._matrix) if self._bias is None else torch.addmm(self._bias, x, self._matrix)

    def gated(self, x: Tensor, norm: Norm, gate: Callable[[Tensor], Tensor]) -> Tensor:
        """`gate` of the product of the normed x: [tokens, 2 * inner] -> [tokens, inner]."""
        few = self._few(x, Use.GATED)
        return gate(self(x, norm)) if few is None else few(x, norm=norm)

    def wide(self, x: Tensor, norm: Norm) -> Tensor:
        """The product of the normed x in fp32. A GPU adds up 16-bit products in fp32: here they stay so, unrounded, so
        that logits have no ties of 16 bits and no second pass widens them.
        """
        few = self._few(x, Use.LOGITS)
        if few is not None:
            return few(x, norm=norm)
        x = norm(x)
        if self._widens:
            assert self._matrix is not None
            return torch.mm(x, self._matrix, out_dtype=torch.float32)
        return self(x).float()

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Adds x W^T + b to `residual` [tokens, out] in place, and returns it."""
        if self.packed is not None and x.shape[0] <= self.few:
            return self.packed.add_to(residual, x, self.packed_bias)
        few = self._few(x, Use.ADDED)
        if few is not None:
            return few(x, residual=residual)
        assert self._matrix is not None
        residual.addmm_(x, self._matrix)
        return residual if self._bias is None else residual.add_(self._bias)

    def _few(self, x: Tensor, use: Use) -> Skinny | None:
        own = self._skinny
        return own if own is not None and own.use is use and x.shape[0] in own.counts else None

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

"""The ways to multiply few tokens by a GPU's 16-bit matrix, each called alike: what PyTorch takes by itself, another of
its libraries, and what its compiler makes. These have the layer's own kernels before and after them. Triton's product,
in products.py, does all in one launch where it can.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any, Protocol

import torch
from torch import Tensor

from aerie.engine.kernels.uses import Norm

MOST_TOKENS = 64
"""More are a library's."""


class Way(Protocol):
    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        norm: Norm | None = None,
        gate: bool = False,
        residual: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """x [tokens, in], weight [out, in] -> x W^T [tokens, out], in x's dtype or `dtype`. `norm` is applied to x
        before; with `gate` the result is SwiGLU's product [tokens, out / 2]. It is added to `residual`, if given, in
        place.
        """


class Product(Protocol):
    """A way without norm and SwiGLU."""

    def __call__(
        self, x: Tensor, weight: Tensor, *, residual: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> Tensor: ...


class Between:
    """A product between the kernels of norm and SwiGLU. Implements Way."""

    def __init__(self, product: Product, gated: Callable[[Tensor], Tensor]) -> None:
        self.product = product
        self._gated = gated

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        norm: Norm | None = None,
        gate: bool = False,
        residual: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        found = self.product(x if norm is None else norm(x), weight, residual=residual, dtype=dtype)
        return self._gated(found) if gate else found


def by_torch(x: Tensor, weight: Tensor, *, residual: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    return _product(x, weight, residual, dtype)


def by_library(name: str) -> Product:
    """`cublas` or `cublaslt`, whichever PyTorch takes by itself."""

    def multiply(x: Tensor, weight: Tensor, **given: Any) -> Tensor:
        before = torch.backends.cuda.preferred_blas_library()
        torch.backends.cuda.preferred_blas_library(name)
        try:
            return by_torch(x, weight, **given)
        finally:
            torch.backends.cuda.preferred_blas_library(before)

    return multiply


class ByInductor:
    """PyTorch's compiler, which tunes for seconds for each number of tokens, matrix and kind of result."""

    def __init__(self) -> None:
        self._compiled: dict[Any, Callable[..., Tensor]] = {}

    def __call__(
        self, x: Tensor, weight: Tensor, *, residual: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        case = x.shape, weight.shape, weight.dtype, residual is None, dtype
        if case not in self._compiled:
            self._compiled[case] = torch.compile(
                _separate(f"product_{len(self._compiled)}"),
                mode="max-autotune-no-cudagraphs",
                dynamic=False,
                fullgraph=True,
            )
        return self._compiled[case](x, weight, residual, dtype)


def _product(x: Tensor, weight: Tensor, residual: Tensor | None, dtype: torch.dtype | None) -> Tensor:
    if residual is not None:
        return residual.addmm_(x, weight.t())
    return x.mm(weight.t()) if dtype is None else torch.mm(x, weight.t(), out_dtype=dtype)


def _separate(name: str) -> Callable[..., Tensor]:
    """A copy of `_product`: the compiler gives up on a function that it has compiled for several shapes."""
    return FunctionType(_product.__code__.replace(co_name=name), _product.__globals__)

"""Products with 8-bit weights on a GPU: few tokens read the integers, half the bytes of 16-bit weights.

For more tokens than the kernel takes, the weights are widened in each product, whose time many tokens share.
"""

import torch
from torch import Tensor

from aerie.engine.kernels.product_ways import MOST_TOKENS
from aerie.engine.kernels.products import multiply


class Int8Weights:
    """integers [out, in] int8, each worth its output's scale [out] fp32. Implements engine.model.packing.Packed."""

    def __init__(self, integers: Tensor, scales: Tensor) -> None:
        self._integers = integers.contiguous()
        self._scales = scales

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        product = self._times(x)
        return product if bias is None else product.add_(bias)

    def add_to(self, residual: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        if x.shape[0] <= MOST_TOKENS:
            multiply(x, self._integers, scales=self._scales, residual=residual)
        else:
            residual.add_(self._times(x))
        return residual if bias is None else residual.add_(bias)

    @property
    def weight(self) -> Tensor:
        return self._integers.float() * self._scales[:, None]

    @property
    def bytes(self) -> int:
        return self._integers.numel() + self._scales.numel() * self._scales.element_size()

    def _times(self, x: Tensor) -> Tensor:
        if x.shape[0] <= MOST_TOKENS:
            return multiply(x, self._integers, scales=self._scales)
        sums = torch.mm(x, self._integers.t().to(x.dtype), out_dtype=torch.float32)  # [tokens, out]
        return sums.mul_(self._scales).to(x.dtype)

"""A weight matrix that activations pass through, laid out as this machine multiplies it fastest."""

import torch
from torch import Tensor

from engine.packing import pack

_ALL = 1 << 62
_FEW = 12
"""Tokens up to which one thread on the packed form keeps up with three on the columns."""


class Projection:
    """`weight` [out, in] and `bias` [out] of a linear map; inputs are [tokens, in].

    In fp32 on a CPU the matrix is held column by column. One whose weights are 16-bit numbers anyway, as those of a
    bf16 checkpoint, is packed as fp16 and widened while it is read: the arithmetic is that of fp32, on half the bytes.
    One thread reads the packed form; where there are more, they share the columns once tokens are many
    (docs/decisions/0005-packed-weights.md).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.device = weight.device
        self._size, self._bias = weight.shape, bias
        self._packed = pack(weight)
        self._few = 0 if self._packed is None else _ALL if torch.get_num_threads() == 1 else _FEW
        self._matrix: Tensor | None = None
        if self._few < _ALL:
            by_columns = weight.dtype == torch.float32 and weight.device.type == "cpu"
            self._matrix = weight.t().contiguous() if by_columns else weight.t()

    def __call__(self, x: Tensor) -> Tensor:
        """x W^T + b"""
        if self._packed is not None and x.shape[0] <= self._few:
            return torch.fbgemm_linear_fp16_weight_fp32_activation(x, self._packed, self._bias)
        assert self._matrix is not None
        return x.mm(self._matrix) if self._bias is None else torch.addmm(self._bias, x, self._matrix)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Adds x W^T + b to `residual` [tokens, out] in place, and returns it."""
        if x.shape[0] <= self._few:
            return residual.add_(self(x))
        assert self._matrix is not None
        residual.addmm_(x, self._matrix)
        return residual if self._bias is None else residual.add_(self._bias)

    @property
    def weight(self) -> Tensor:
        """[out, in], not to be written. What is packed is read off by sending the identity through."""
        if self._matrix is not None:
            return self._matrix.t()
        assert self._packed is not None
        return torch.fbgemm_linear_fp16_weight_fp32_activation(torch.eye(self._size[1]), self._packed, None).t()

    def shares(self, weight: Tensor) -> bool:
        """Whether this is held as `weight` itself, not as a copy in a layout of its own."""
        return self._matrix is not None and self._matrix.data_ptr() == weight.data_ptr()

    @property
    def bytes(self) -> int:
        """Of the weights as they are held, in both forms where there are two."""
        held = [tensor for tensor in (self._matrix, self._bias) if tensor is not None]
        packed = 0 if self._packed is None else 2 * self._size.numel()
        return packed + sum(tensor.numel() * tensor.element_size() for tensor in held)

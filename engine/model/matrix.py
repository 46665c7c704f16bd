"""A weight matrix before a machine's layout: the weights themselves, or integers with a scale for each output.

Whatever format a checkpoint has, its matrices are read as one of the two (formats.py), stacked and reordered alike, and
given to `Projection`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_LARGEST = 127
_BLOCK = 1 << 22
"""Weights that are rounded at once, which bounds the memory that rounding takes."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """Weights [out, in] as integers int8 [out, in], each worth the scale of its output, fp32 [out]."""

    integers: Tensor
    scales: Tensor
    dtype: torch.dtype
    """Of the weights that this stands for."""

    @property
    def shape(self) -> torch.Size:
        return self.integers.shape

    @property
    def device(self) -> torch.device:
        return self.integers.device

    @property
    def weight(self) -> Tensor:
        """[out, in], a copy."""
        return (self.integers.float() * self.scales[:, None]).to(self.dtype)


Matrix = Tensor | Rounded


def rounded(matrix: Matrix) -> Rounded:
    """The largest weight of an output is 127 times its scale."""
    if isinstance(matrix, Rounded):
        return matrix
    integers = torch.empty(matrix.shape, dtype=torch.int8, device=matrix.device)
    scales = torch.empty(matrix.shape[0], device=matrix.device)
    rows = max(1, _BLOCK // matrix.shape[1])
    for first in range(0, matrix.shape[0], rows):
        part = matrix[first : first + rows].float()  # [up to rows, in]
        scale = (part.abs().amax(1) / _LARGEST).clamp_(min=torch.finfo(torch.float32).tiny)  # [up to rows]
        integers[first : first + rows] = (part / scale[:, None]).round_()
        scales[first : first + rows] = scale
    return Rounded(integers, scales, matrix.dtype)


def stacked(parts: Sequence[Matrix]) -> Matrix:
    """The rows of all parts, one after the other; as weights unless all parts are rounded."""
    if len(parts) == 1:
        return parts[0]
    integers = [part for part in parts if isinstance(part, Rounded)]
    if len(integers) < len(parts):
        return torch.cat([part.weight if isinstance(part, Rounded) else part for part in parts])
    return Rounded(
        torch.cat([part.integers for part in integers]),
        torch.cat([part.scales for part in integers]),
        integers[0].dtype,
    )


def reordered(matrix: Matrix, order: Callable[[Tensor], Tensor]) -> Matrix:
    """`order` moves the rows of a tensor [out, ...]."""
    if isinstance(matrix, Tensor):
        return order(matrix)
    return Rounded(order(matrix.integers), order(matrix.scales), matrix.dtype)

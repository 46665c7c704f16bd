"""What the products of a training run are computed in; weights and sums stay in fp32."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Precision = Literal["float32", "bfloat16"]


def dtype_of(precision: Precision) -> "torch.dtype":
    import torch  # takes a second, which reading a config need not

    return torch.float32 if precision == "float32" else torch.bfloat16

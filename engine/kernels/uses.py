"""What a layer does with a product, which a kernel may do in the same launch."""

from enum import Enum
from typing import Protocol

from torch import Tensor


class Use(Enum):
    PLAIN = "plain"
    NORMED = "normed"
    """Its input is normed before."""
    GATED = "gated"
    """As NORMED; of gate and up, the result is SwiGLU's product."""
    ADDED = "added"
    """It is added to the residual stream."""
    LOGITS = "logits"
    """As NORMED, with a result in fp32."""


class Norm(Protocol):
    """x / hypot(|x|, floor) * gain, as engine.model.norm.RmsNorm."""

    gain: Tensor
    """[size] fp32"""
    floor: Tensor
    """[] fp32"""

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., size] -> the same shape and dtype."""

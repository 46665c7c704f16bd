"""The Muon optimizer in fp32 or bf16: torch's computes in bf16 alone, four times slower on CPUs without bf16 units."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of the Newton-Schulz iteration of Jordan et al., "Muon" (2024), which drives singular values to 1."""
_ITERATIONS = 5
_ADAM_RMS = 0.2
"""Root mean square of an AdamW update at rate 1, matched here (Liu et al., "Muon is Scalable", 2025)."""


class Muon(Optimizer):
    """Momentum whose update is the nearest orthogonal matrix; for 2-d weights only. Equal shapes run as one batch."""

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.05,
        precision: torch.dtype = torch.float32,
    ) -> None:
        """`precision` is what the nearest orthogonal matrices are computed in."""
        self._precision = precision
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.ndim != 2:
                    raise ValueError(f"Muon takes matrices; got a tensor of shape {tuple(weight.shape)}")
                self.state[weight]["momentum"] = torch.zeros_like(weight)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Updates every weight; each must have a gradient."""
        for group in self.param_groups:
            for weights in _by_shape(group["params"]):
                # updates of equal shapes: [batch, rows, columns]
                updates = torch.stack([self._momentum(weight, group["momentum"]) for weight in weights])
                scale = group["lr"] * _ADAM_RMS * max(updates.shape[1:]) ** 0.5
                for weight, update in zip(weights, orthogonal(updates.to(self._precision)), strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-scale)

    def _momentum(self, weight: Tensor, decay: float) -> Tensor:
        """Nesterov's look-ahead on the running mean of gradients."""
        assert weight.grad is not None
        mean: Tensor = self.state[weight]["momentum"].lerp_(weight.grad, 1 - decay)
        return weight.grad.lerp(mean, decay)


def orthogonal(matrices: Tensor) -> Tensor:
    """[batch, rows, columns] -> the same shape with singular values near 1."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = _QUINTIC
    for _ in range(_ITERATIONS):
        gram = torch.bmm(x, x.mT)  # [batch, n, n], n the smaller of rows and columns
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)  # sums within the products
    return x.mT if tall else x


def _by_shape(weights: list[Tensor]) -> Iterable[list[Tensor]]:
    groups: dict[torch.Size, list[Tensor]] = {}
    for weight in weights:
        groups.setdefault(weight.shape, []).append(weight)
    return groups.values()

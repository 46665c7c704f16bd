"""Muon for matrices and AdamW for the rest: how every run splits the weights of a model."""

from torch import nn
from torch.optim import AdamW, Optimizer

from aerie.train.optimization.muon import Muon

_BETAS = (0.9, 0.95)
_MATRIX_DECAY = 0.05


def divided(
    model: nn.Module,
    *,
    apart: str = "lm_head",
    betas: tuple[float, float] = _BETAS,
    matrix_decay: float = _MATRIX_DECAY,
    vector_decay: float = 0.0,
) -> list[Optimizer]:
    """[Muon, AdamW] at rate 0.

    AdamW takes weights that are not matrices and those with `apart` in their names, for matrices with one row per
    token. Frozen weights belong to neither.
    """
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            (matrices if weight.ndim == 2 and apart not in name else others).append(weight)
    muon = Muon(matrices, lr=0.0, weight_decay=matrix_decay)
    return [muon, AdamW(others, lr=0.0, betas=betas, weight_decay=vector_decay)]

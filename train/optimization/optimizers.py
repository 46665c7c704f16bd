"""Muon for matrices and AdamW for the rest: how every run splits the weights of a model."""

from collections.abc import Mapping

import torch
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
    slower: Mapping[str, float] | None = None,
    precision: torch.dtype = torch.float32,
) -> list[Optimizer]:
    """[Muon, AdamW] at rate 0.

    AdamW takes weights that are not matrices and those with `apart` in their names, for matrices with one row per
    token. Frozen weights belong to neither. Matrices whose names begin with a key of `slower` learn at that share of
    the rate. Muon computes in `precision`.
    """
    matrices: dict[float, list[nn.Parameter]] = {1.0: []}
    others: list[nn.Parameter] = []
    for name, weight in model.named_parameters():
        if weight.ndim != 2 or apart in name:
            kept = others
        else:
            share = next((share for start, share in (slower or {}).items() if name.startswith(start)), 1.0)
            kept = matrices.setdefault(share, [])
        if weight.requires_grad:
            kept.append(weight)
    groups = [{"params": weights, "share": share} for share, weights in matrices.items() if weights]
    muon = Muon(groups, lr=0.0, weight_decay=matrix_decay, precision=precision)
    return [muon, AdamW(others, lr=0.0, betas=betas, weight_decay=vector_decay)]

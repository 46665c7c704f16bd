"""Muon's update is orthogonal, and it descends."""

import pytest
import torch

from aerie.train.optimization.muon import Muon, orthogonal


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 8, 40), (2, 40, 8)])
def test_singular_values_come_near_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
    assert values.min() > 0.3 and values.max() < 1.3


def test_the_update_keeps_the_singular_vectors() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(1, 12, 12)
    u, _, v = torch.linalg.svd(matrix)
    core = u.mT @ orthogonal(matrix) @ v.mT
    assert (core - torch.diag_embed(torch.diagonal(core, dim1=1, dim2=2))).abs().max() < 1e-4


def test_in_bf16_the_update_is_the_same_up_to_rounding() -> None:
    torch.manual_seed(0)
    matrices = torch.randn(2, 24, 48)
    exact, rounded = orthogonal(matrices), orthogonal(matrices.bfloat16())
    assert rounded.dtype is torch.bfloat16
    assert 0 < (rounded - exact).norm() / exact.norm() < 0.03


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_it_solves_a_linear_problem(precision: torch.dtype) -> None:
    torch.manual_seed(0)
    wanted, weight = torch.randn(8, 8), torch.nn.Parameter(torch.zeros(8, 8))
    optimizer = Muon([weight], lr=0.1, weight_decay=0.0, precision=precision)
    for step in range(300):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 300)
        optimizer.zero_grad()
        (weight - wanted).square().sum().backward()
        optimizer.step()
    assert (weight - wanted).abs().max() < 0.1


def test_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match="matrices"):
        Muon([torch.nn.Parameter(torch.zeros(3))], lr=0.1)

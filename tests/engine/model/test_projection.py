"""Matrices in every layout against one dense product."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from aerie.engine.bindings import Kernels
from aerie.engine.model.projection import Projection

OUT, IN = 48, 40


def bf16_numbers(*size: int) -> Tensor:
    return (torch.randn(*size) * 0.05).bfloat16().float()


def packs(weight: Tensor) -> bool:
    """A packed matrix takes two bytes a weight."""
    return Projection(weight).bytes == 2 * weight.numel()


needs_packing = pytest.mark.skipif(not packs(torch.zeros(8, 8)), reason="this torch has no packed fp16 matrices")


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("tokens", [1, 2, 12, 13, 70])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", ["bf16 numbers", "fp32 numbers"])
def test_every_layout_multiplies(kernels: Kernels, threads: int, tokens: int, biased: bool, dtype: str) -> None:
    weight = bf16_numbers(OUT, IN) if dtype == "bf16 numbers" else torch.randn(OUT, IN) * 0.05
    bias = torch.randn(OUT) if biased else None
    x, residual = torch.randn(tokens, IN), torch.randn(tokens, OUT)
    expected = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    projection = Projection(weight, bias, kernels)
    torch.testing.assert_close(projection(x).double(), expected, atol=1e-5, rtol=0)
    added = projection.add_to(residual.clone(), x)
    torch.testing.assert_close(added.double(), expected + residual.double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(projection.weight, weight, atol=2.0**-25, rtol=0)


@needs_packing
def test_only_weights_that_fit_are_packed() -> None:
    weight = bf16_numbers(OUT, IN)
    assert packs(weight)
    for number in (0.1, 1e5):  # too fine, too large
        spoilt = weight.clone()
        spoilt[3, 4] = number
        assert not packs(spoilt), number


@needs_packing
def test_the_smallest_weights_move_by_less_than_their_grid() -> None:
    weight = torch.full((8, 8), 2.0**-26)  # a bf16 number, under the smallest fp16 one
    assert packs(weight)
    assert (Projection(weight).weight - weight).abs().max() <= 2.0**-25


def test_16_bit_arithmetic_is_left_as_it_is() -> None:
    weight = bf16_numbers(OUT, IN).bfloat16()
    projection, x = Projection(weight), torch.randn(3, IN).bfloat16()
    assert torch.equal(projection(x), x.mm(weight.t()))
    assert projection.bytes == 2 * weight.numel() and projection.shares(weight)

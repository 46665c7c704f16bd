"""Products of few tokens by Triton beside torch's, in 16 bits and with 8-bit weights."""

from typing import Any

import pytest
import torch
from torch import Tensor

from aerie.engine.kernels.product_choice import SkinnyTrials
from aerie.engine.model.matrix import rounded
from aerie.engine.model.packing import pack_int8
from tests.engine.triton_here import DEVICE, INTERPRETED, TRITON, needs_triton

pytestmark = needs_triton
DTYPE = torch.float16 if INTERPRETED else torch.bfloat16
SIZES = [(1, 256, 64, None), (5, 200, 130, 2), (33, 384, 64, 3)]
"""Tokens, width, outputs, and parts of the width."""


def drawn(tokens: int, width: int, outputs: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, width, generator=generator)
    weight = torch.randn(outputs, width, generator=generator) * width**-0.5
    return x.to(DEVICE, DTYPE), weight.to(DEVICE, DTYPE)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.float(), expected.float(), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(("tokens", "width", "outputs", "splits"), SIZES)
def test_a_product_is_torch_s(tokens: int, width: int, outputs: int, splits: int | None) -> None:
    from aerie.engine.kernels.products import multiply

    x, weight = drawn(tokens, width, outputs)
    expected = x.float() @ weight.float().t()
    found = multiply(x, weight, splits=splits)
    assert found.dtype is DTYPE
    close(found, expected)
    assert torch.equal(found, multiply(x, weight, splits=splits)), "parts are added up in one order"
    wide = multiply(x, weight, dtype=torch.float32, splits=splits)
    assert wide.dtype is torch.float32
    torch.testing.assert_close(wide, expected, atol=1e-3, rtol=1e-3)
    residual = torch.ones(tokens, outputs, dtype=DTYPE, device=DEVICE)
    assert multiply(x, weight, residual=residual, splits=splits) is residual
    close(residual, expected + 1)


def test_a_trial_takes_it() -> None:
    """Where it is faster by the test's clock: its products are right in every form."""
    from aerie.engine.kernels.products import multiply

    chosen = SkinnyTrials({"triton": multiply}, lambda way, *_: 1.0 if way is multiply else 100.0)
    found = chosen(drawn(1, 256, 64)[1])
    assert found is not None and set(found.ways) == set(range(1, 65))


def test_a_token_s_product_is_the_same_beside_others() -> None:
    """As many as share a width of the tile."""
    from aerie.engine.kernels.products import multiply

    x, weight = drawn(16, 200, 130)
    whole = multiply(x, weight)
    assert all(torch.equal(multiply(x[:count], weight), whole[:count]) for count in (1, 7, 15))


@pytest.mark.parametrize(("tokens", "width", "outputs"), [(1, 256, 64), (20, 200, 130), (70, 200, 130)])
def test_8_bits_are_their_reference(tokens: int, width: int, outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":  # whose torch has no product of 16-bit numbers in fp32
        monkeypatch.setattr(torch, "mm", lambda x, y, *, out_dtype: x.to(out_dtype) @ y.to(out_dtype))
    x, weight = drawn(tokens, width, outputs)
    matrix = rounded(weight)
    ours: Any = TRITON[pack_int8](matrix)
    expected = x.float() @ (matrix.integers.float() * matrix.scales[:, None]).t()
    close(ours(x, None), expected)
    assert ours(x, None).dtype is DTYPE
    bias = torch.full((outputs,), 2.0, dtype=DTYPE, device=DEVICE)
    close(ours(x, bias), expected + 2)
    residual = torch.ones(tokens, outputs, dtype=DTYPE, device=DEVICE)
    assert ours.add_to(residual, x, bias) is residual
    close(residual, expected + 3)
    torch.testing.assert_close(ours.weight, matrix.integers.float() * matrix.scales[:, None])
    assert ours.bytes == outputs * width + 4 * outputs

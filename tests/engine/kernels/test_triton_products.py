"""Products of few tokens by Triton beside torch's, in 16 bits and with 8-bit weights."""

from typing import Any

import pytest
import torch
from torch import Tensor

from aerie.engine.kernels.product_choice import SPANS, SkinnyTrials
from aerie.engine.kernels.product_ways import Between, by_torch
from aerie.engine.kernels.uses import Use
from aerie.engine.model.layer import gated
from aerie.engine.model.matrix import rounded
from aerie.engine.model.norm import RmsNorm
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
    from aerie.engine.kernels.products import multiply_by_tiles

    x, weight = drawn(tokens, width, outputs)
    expected = x.float() @ weight.float().t()
    found = multiply_by_tiles(x, weight, splits=splits)
    assert found.dtype is DTYPE
    close(found, expected)
    assert torch.equal(found, multiply_by_tiles(x, weight, splits=splits)), "parts are added up in one order"
    wide = multiply_by_tiles(x, weight, dtype=torch.float32, splits=splits)
    assert wide.dtype is torch.float32
    torch.testing.assert_close(wide, expected, atol=1e-3, rtol=1e-3)
    residual = torch.ones(tokens, outputs, dtype=DTYPE, device=DEVICE)
    assert multiply_by_tiles(x, weight, residual=residual, splits=splits) is residual
    close(residual, expected + 1)


@pytest.mark.parametrize("use", Use)
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 9])
@pytest.mark.parametrize(("width", "outputs"), [(512, 64), (200, 90)])
def test_norm_swiglu_and_addition_are_the_layer_s(tokens: int, use: Use, width: int, outputs: int) -> None:
    """With fewer tokens than a block, outputs that fill no block, and a width that does not end with a tile."""
    from aerie.engine.kernels.products import multiply

    x, weight = drawn(tokens, width, outputs)
    norm = RmsNorm(torch.rand(width, generator=torch.Generator().manual_seed(1)).to(DEVICE) + 0.5, 1e-5)
    expected = (norm(x.float()) if use in (Use.NORMED, Use.GATED, Use.LOGITS) else x.float()) @ weight.float().t()
    given: dict[str, Any] = {"norm": None if use in (Use.PLAIN, Use.ADDED) else norm, "gate": use is Use.GATED}
    if use is Use.GATED:
        expected = gated(expected)
    if use is Use.ADDED:
        given["residual"] = torch.ones(tokens, outputs, dtype=DTYPE, device=DEVICE)
        expected = expected + 1
    if use is Use.LOGITS:
        given["dtype"] = torch.float32
    found = multiply(x, weight, **given)
    assert found.dtype is (torch.float32 if use is Use.LOGITS else DTYPE)
    assert use is not Use.ADDED or found is given["residual"]
    close(found, expected)


@pytest.mark.parametrize("use", Use)
def test_a_trial_takes_it(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is faster by the test's clock: its products are right with every number of tokens."""
    from aerie.engine.kernels.products import multiply

    library = Between(by_torch, gated)
    if DEVICE.type == "cpu":  # whose torch has no product of 16-bit numbers in fp32
        monkeypatch.setattr(torch, "mm", lambda x, y, *, out_dtype: x.to(out_dtype) @ y.to(out_dtype))
    ways = {"triton": multiply}
    norm = lambda weight: RmsNorm(weight, 1e-5)  # noqa: E731
    chosen = SkinnyTrials(ways, library, norm, lambda way, *_: 1.0 if way is multiply else 100.0)
    found = chosen(drawn(1, 256, 64)[1], use)
    assert found is not None and set(found.ways) == set(range(1, SPANS[-1][1] + 1))


def test_a_token_s_product_is_the_same_beside_others() -> None:
    """As many as share a width of the tile, or are streamed together."""
    from aerie.engine.kernels.products import multiply

    x, weight = drawn(16, 200, 130)
    for least, most in ((1, 4), (5, 16)):
        whole = multiply(x[:most], weight)
        assert all(torch.equal(multiply(x[:count], weight), whole[:count]) for count in range(least, most, 2))


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

"""Products of few tokens by Triton beside torch's."""

import pytest
import torch

from tests.engine.triton_here import DEVICE, INTERPRETED, needs_triton

pytestmark = needs_triton
DTYPE = torch.float16 if INTERPRETED else torch.bfloat16


@pytest.mark.parametrize(
    ("tokens", "width", "outputs", "splits"), [(1, 256, 64, None), (5, 200, 130, 2), (33, 384, 64, 3)]
)
def test_a_product_is_torch_s(tokens: int, width: int, outputs: int, splits: int | None) -> None:
    from aerie.engine.kernels.products import multiply

    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, width, generator=generator).to(DEVICE, DTYPE)
    weight = (torch.randn(outputs, width, generator=generator) * width**-0.5).to(DEVICE, DTYPE)
    found = multiply(x, weight, splits)
    assert found.dtype is DTYPE
    torch.testing.assert_close(found.float(), x.float() @ weight.float().t(), atol=2e-2, rtol=2e-2)
    assert torch.equal(found, multiply(x, weight, splits)), "parts are added up in one order"

"""Which product serves a matrix: trials by a clock of the test's own."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from aerie.engine.bindings import Kernels
from aerie.engine.model import projection
from aerie.engine.model.projection import Projection, skinny
from tests.engine.triton_here import DEVICE, INTERPRETED, needs_triton

pytestmark = needs_triton
DTYPE = torch.float16 if INTERPRETED else torch.bfloat16


class Times:
    """Microseconds of the kernel by tokens; the library takes 100."""

    def __init__(self, ours: dict[int, float]) -> None:
        self.ours, self.asked = ours, 0

    def __call__(self, way: Any, x: Tensor, copies: Sequence[Tensor]) -> float:
        from aerie.engine.kernels.products import multiply

        self.asked += 1
        return self.ours[x.shape[0]] if way is multiply else 100.0


def weight(outputs: int = 64, width: int = 128) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return (torch.randn(outputs, width, generator=generator) * width**-0.5).to(DEVICE, DTYPE)


def trials(ours: dict[int, float]) -> Any:
    from aerie.engine.kernels.product_choice import SkinnyTrials

    return SkinnyTrials(Times(ours))


def test_the_kernel_serves_where_it_is_faster() -> None:
    chosen = trials({1: 120, 16: 80, 32: 99, 64: 70})
    found = chosen(weight())
    assert found.counts == {*range(2, 17), *range(33, 65)}, "3 % are not enough at 32 tokens"
    assert str(chosen) == "library; [64, 128] Triton at 2-16, 33-64 tokens"


def test_one_trial_serves_a_shape() -> None:
    times = Times(dict.fromkeys((1, 16, 32, 64), 50.0))
    from aerie.engine.kernels.product_choice import SkinnyTrials

    chosen = SkinnyTrials(times)
    first, asked = chosen(weight()), times.asked
    again = chosen(weight())
    assert first is not None and again is not None and first.counts == again.counts == frozenset(range(1, 65))
    assert times.asked == asked and chosen(weight(128)) is not None and times.asked == 2 * asked


def test_the_library_serves_where_it_is_faster_and_what_the_kernel_cannot() -> None:
    chosen = trials(dict.fromkeys((1, 16, 32, 64), 200.0))
    assert chosen(weight()) is None and str(chosen) == "library"
    assert trials({})(weight().float()) is None and trials({})(weight().t()) is None


@pytest.mark.parametrize("fault", ["wrong", "broken"])
def test_a_kernel_that_fails_a_trial_never_serves(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from aerie.engine.kernels import product_choice

    def faulty(x: Tensor, own: Tensor, **_: Any) -> Tensor:
        if fault == "broken":
            raise RuntimeError("no kernel for this device")
        return torch.zeros(x.shape[0], own.shape[0], dtype=x.dtype, device=x.device)

    monkeypatch.setattr(product_choice, "multiply", faulty)
    with caplog.at_level(logging.WARNING, logger="aerie.kernels"):
        assert trials(dict.fromkeys((1, 16, 32, 64), 1.0))(weight()) is None
    assert {"wrong": "is wrong here", "broken": "no kernel for this device"}[fault] in caplog.text


def test_a_projection_takes_it_for_its_numbers_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that claim to lie on a GPU: products themselves are the interpreter's."""
    from aerie.engine.kernels.products import Skinny

    own = weight()
    made = Projection(own)
    monkeypatch.setattr(made, "_skinny", Skinny(own, frozenset({2, 3})))
    counted: list[int] = []
    honest = Skinny.times
    monkeypatch.setattr(Skinny, "times", lambda self, x, dtype=None: counted.append(len(x)) or honest(self, x, dtype))
    for tokens in (1, 2, 3, 4):
        x = torch.randn(tokens, 128).to(DEVICE, DTYPE)
        torch.testing.assert_close(made(x).float(), x.float() @ own.float().t(), atol=2e-2, rtol=2e-2)
        assert made.wide(x).dtype is torch.float32
        residual = torch.zeros(tokens, 64, dtype=DTYPE, device=DEVICE)
        torch.testing.assert_close(made.add_to(residual, x), made(x), atol=2e-2, rtol=2e-2)
    assert set(counted) == {2, 3}
    assert Kernels()[skinny] is projection.skinny and skinny(own) is None

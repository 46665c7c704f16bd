"""What multiplies by a matrix: trials by a clock of the test's own, among products that need no GPU."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from aerie.engine.bindings import Kernels
from aerie.engine.kernels.product_choice import Chosen, SkinnyTrials
from aerie.engine.kernels.product_ways import ByInductor, Way, by_torch
from aerie.engine.model import projection
from aerie.engine.model.projection import Projection, skinny

DTYPE = torch.bfloat16


def product(x: Tensor, weight: Tensor, *, residual: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    sums = x.float() @ weight.float().t()
    return sums.to(dtype or x.dtype) if residual is None else residual.add_(sums.to(residual.dtype))


def other(x: Tensor, weight: Tensor, **given: Any) -> Tensor:
    return product(x, weight, **given)


class Times:
    """Microseconds of each way at 1, 16, 32 and 64 tokens; the library takes 100."""

    def __init__(self, taken: dict[Way, tuple[float, ...]]) -> None:
        self.taken, self.asked = taken, 0

    def __call__(self, way: Way, x: Tensor, copies: Sequence[Tensor]) -> float:
        self.asked += 1
        return 100.0 if way is by_torch else self.taken[way][(1, 16, 32, 64).index(len(x))]


def weight(outputs: int = 64, width: int = 128) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return (torch.randn(outputs, width, generator=generator) * width**-0.5).to(DTYPE)


def trials(*times: float) -> SkinnyTrials:
    return SkinnyTrials({"triton": product}, Times({product: times}))


def test_a_way_serves_where_it_is_faster() -> None:
    chosen = trials(120, 80, 99, 70)
    found = chosen(weight())
    assert found is not None and set(found.counts) == {*range(2, 17), *range(33, 65)}, "3 % are needed"
    assert str(chosen) == "library; [64, 128] triton at 2-16, triton at 33-64 tokens"


def test_the_fastest_of_all_serves() -> None:
    times = Times({product: (50, 90, 90, 120), other: (60, 80, 120, 120)})
    chosen = SkinnyTrials({"triton": product, "cublaslt": other}, times)
    found = chosen(weight())
    assert found is not None and found.ways[1] is product and found.ways[9] is other and found.ways[20] is product
    assert str(chosen) == "library; [64, 128] triton at 1, cublaslt at 2-16, triton at 17-32 tokens"


def test_what_was_compiled_serves_no_other_number_of_tokens() -> None:
    times = Times({product: (50, 80, 50, 120), other: (60, 70, 60, 80)})
    chosen = SkinnyTrials({"triton": product, "inductor": other}, times)
    assert chosen(weight()) is not None
    runs = "triton at 1-15, inductor at 16, triton at 17-32, inductor at 64 tokens"
    assert str(chosen) == f"library; [64, 128] {runs}"


def test_one_trial_serves_a_shape() -> None:
    times = Times({product: (50, 50, 50, 50)})
    chosen = SkinnyTrials({"triton": product}, times)
    first, asked = chosen(weight()), times.asked
    again = chosen(weight())
    assert first is not None and again is not None and set(first.counts) == set(again.counts) == set(range(1, 65))
    assert times.asked == asked and chosen(weight(128)) is not None and times.asked == 2 * asked


def test_the_library_serves_where_it_is_faster_and_what_a_way_cannot() -> None:
    chosen = trials(200, 200, 200, 200)
    assert chosen(weight()) is None and str(chosen) == "library"
    assert trials()(weight().float()) is None and trials()(weight().t()) is None


@pytest.mark.parametrize("fault", ["wrong", "broken", "wrong added", "rounded"])
def test_a_way_that_fails_a_trial_never_serves(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    def faulty(x: Tensor, own: Tensor, **given: Any) -> Tensor:
        if fault == "broken":
            raise RuntimeError("no kernel for this device")
        if fault == "wrong added" and "residual" in given:
            return product(x, own)
        if fault == "rounded" and "dtype" in given:
            return product(x, own)
        return product(x, own, **given) * (0 if fault == "wrong" else 1)

    times = Times({faulty: (1, 1, 1, 1), product: (50, 50, 50, 50)})
    chosen = SkinnyTrials({"cublaslt": faulty, "triton": product}, times)
    with caplog.at_level(logging.WARNING, logger="aerie.kernels"):
        found = chosen(weight())
    assert found is not None and set(found.ways.values()) == {product}
    assert ("no kernel for this device" if fault == "broken" else "is wrong here") in caplog.text


def test_a_way_that_cannot_be_recorded_never_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(call: Any, *_: Any) -> float:
        if call.__closure__ and any(cell.cell_contents is product for cell in call.__closure__):
            raise RuntimeError("operation not permitted when stream is capturing")
        return 100.0

    monkeypatch.setattr("aerie.engine.kernels.product_choice.microseconds", refused)
    assert SkinnyTrials({"triton": product})(weight()) is None


def test_a_projection_takes_it_for_its_numbers_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    own, counted = weight(), list[int]()

    def counting(x: Tensor, weight: Tensor, **given: Any) -> Tensor:
        counted.append(len(x))
        return product(x, weight, **given)

    made = Projection(own)
    monkeypatch.setattr(made, "_skinny", Chosen(own, dict.fromkeys((2, 3), counting)))
    for tokens in (1, 2, 3, 4):
        x = torch.randn(tokens, 128).to(DTYPE)
        torch.testing.assert_close(made(x).float(), x.float() @ own.float().t(), atol=2e-2, rtol=2e-2)
        assert made.wide(x).dtype is torch.float32
        residual = torch.zeros(tokens, 64, dtype=DTYPE)
        torch.testing.assert_close(made.add_to(residual, x), made(x), atol=2e-2, rtol=2e-2)
    assert set(counted) == {2, 3}
    assert Kernels()[skinny] is projection.skinny and skinny(own) is None


def test_each_shape_is_compiled_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's compiler gives up on a function after a few shapes, and the plain product would be taken for its."""
    made: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        made.append(len(inputs))
        return graph.forward

    honest, way = torch.compile, ByInductor()
    monkeypatch.setattr(torch, "compile", lambda call, *, mode, **given: honest(call, backend=backend, **given))
    cases = [(tokens, weight(outputs)) for tokens in (1, 2, 3) for outputs in (8, 16, 24, 32)]
    for _ in range(2):
        for tokens, own in cases:
            x = torch.ones(tokens, 128, dtype=DTYPE)
            assert torch.equal(way(x, own), by_torch(x, own))
            residual = torch.zeros(tokens, len(own), dtype=DTYPE)
            assert way(x, own, residual=residual) is residual and torch.equal(residual, by_torch(x, own))
    assert len(made) == 2 * len(cases)

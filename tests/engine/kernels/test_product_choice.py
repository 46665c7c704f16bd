"""What multiplies by a matrix: trials by a clock of the test's own, among products that need no GPU."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from aerie.engine.bindings import Kernels
from aerie.engine.kernels.product_choice import SPANS, Case, Chosen, SkinnyTrials, Timed
from aerie.engine.kernels.product_ways import Between, ByInductor, Way, by_torch
from aerie.engine.kernels.uses import Use
from aerie.engine.model import projection
from aerie.engine.model.layer import gated
from aerie.engine.model.norm import RmsNorm
from aerie.engine.model.projection import Projection, skinny

DTYPE = torch.bfloat16


def in_fp32(x: Tensor, weight: Tensor, *, residual: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    sums = x.float() @ weight.float().t()
    return sums.to(dtype or x.dtype) if residual is None else residual.add_(sums.to(residual.dtype))


def of_others(x: Tensor, weight: Tensor, **given: Any) -> Tensor:
    return in_fp32(x, weight, **given)


LIBRARY, PRODUCT, OTHER = Between(in_fp32, gated), Between(in_fp32, gated), Between(of_others, gated)


class Times:
    """Microseconds of each way with the most tokens of each span; the library takes 100."""

    def __init__(self, taken: dict[Way, tuple[float, ...]]) -> None:
        self.taken, self.asked = taken, 0

    def __call__(self, way: Way, case: Case, copies: Sequence[Tensor]) -> float:
        self.asked += 1
        spans = [most for _, most in SPANS]
        return 100.0 if way is LIBRARY else self.taken[way][spans.index(len(case.x))]


def weight(outputs: int = 64, width: int = 128) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return (torch.randn(outputs, width, generator=generator) * width**-0.5).to(DTYPE)


def chosen_of(ways: dict[str, Way], times: Timed | None = None) -> SkinnyTrials:
    return SkinnyTrials(ways, LIBRARY, lambda weight: RmsNorm(weight, 1e-5), times)


def trials(*times: float) -> SkinnyTrials:
    return chosen_of({"triton": PRODUCT}, Times({PRODUCT: times}))


def test_a_way_serves_where_it_is_faster() -> None:
    chosen = trials(120, 120, 80, 80, 99, 70)
    found = chosen(weight(), Use.PLAIN)
    assert found is not None and set(found.counts) == {*range(3, 17), *range(33, 65)}, "3 % are needed"
    assert str(chosen) == "library; [64, 128] plain triton at 3-16, triton at 33-64 tokens"


def test_the_fastest_of_all_serves() -> None:
    times = Times({PRODUCT: (50, 90, 90, 90, 90, 120), OTHER: (60, 80, 80, 80, 120, 120)})
    chosen = chosen_of({"triton": PRODUCT, "cublaslt": OTHER}, times)
    found = chosen(weight(), Use.NORMED)
    assert found is not None and found.ways[1] is PRODUCT and found.ways[9] is OTHER and found.ways[20] is PRODUCT
    assert str(chosen) == "library; [64, 128] normed triton at 1, cublaslt at 2-16, triton at 17-32 tokens"


def test_what_was_compiled_serves_no_other_number_of_tokens() -> None:
    times = Times({PRODUCT: (50, 80, 80, 80, 50, 120), OTHER: (60, 120, 120, 70, 60, 80)})
    chosen = chosen_of({"triton": PRODUCT, "inductor": OTHER}, times)
    assert chosen(weight(), Use.PLAIN) is not None
    runs = "triton at 1-15, inductor at 16, triton at 17-32, inductor at 64 tokens"
    assert str(chosen) == f"library; [64, 128] plain {runs}"


def test_one_trial_serves_a_shape_and_its_use() -> None:
    times = Times({PRODUCT: (50,) * 6})
    chosen = chosen_of({"triton": PRODUCT}, times)
    first, asked = chosen(weight(), Use.ADDED), times.asked
    again = chosen(weight(), Use.ADDED)
    assert first is not None and again is not None and set(first.counts) == set(again.counts) == set(range(1, 65))
    assert times.asked == asked and chosen(weight(128), Use.ADDED) is not None and times.asked == 2 * asked
    assert chosen(weight(), Use.GATED) is not None and times.asked == 3 * asked


def test_a_small_matrix_is_copied_few_times() -> None:
    """As many copies as a cache forgets are thousands, which take minutes to record."""
    seen: list[int] = []

    def timed(way: Way, case: Case, copies: Sequence[Tensor]) -> float:
        seen.append(len(copies))
        return 1.0

    chosen_of({"triton": PRODUCT}, timed)(weight(), Use.PLAIN)
    assert max(seen) <= 33


def test_the_library_serves_where_it_is_faster_and_what_a_way_cannot() -> None:
    chosen = trials(*[200] * 6)
    assert chosen(weight(), Use.PLAIN) is None and str(chosen) == "library"
    assert trials()(weight().float(), Use.PLAIN) is None and trials()(weight().t(), Use.PLAIN) is None


@pytest.mark.parametrize(
    ("fault", "use"),
    [
        *(("wrong", use) for use in Use),
        ("broken", Use.PLAIN),
        ("not added", Use.ADDED),
        ("rounded", Use.LOGITS),
        ("not normed", Use.NORMED),
        ("not gated", Use.GATED),
    ],
)
def test_a_way_that_fails_a_trial_never_serves(fault: str, use: Use, caplog: pytest.LogCaptureFixture) -> None:
    def faulty(x: Tensor, own: Tensor, **given: Any) -> Tensor:
        if fault == "broken":
            raise RuntimeError("no kernel for this device")
        changed = {"not added": "residual", "rounded": "dtype", "not normed": "norm"}.get(fault)
        result = PRODUCT(x, own, **{name: value for name, value in given.items() if name != changed})
        if fault == "wrong":
            result.zero_()
        return result * 2 if fault == "not gated" else result

    times = Times({faulty: (1,) * 6, PRODUCT: (50,) * 6})
    chosen = chosen_of({"cublaslt": faulty, "triton": PRODUCT}, times)
    with caplog.at_level(logging.WARNING, logger="aerie.kernels"):
        found = chosen(weight(), use)
    assert found is not None and set(found.ways.values()) == {PRODUCT}
    assert ("no kernel for this device" if fault == "broken" else "is wrong here") in caplog.text


def test_a_way_that_cannot_be_recorded_never_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(call: Any, *_: Any) -> float:
        if call.__closure__ and any(cell.cell_contents is PRODUCT for cell in call.__closure__):
            raise RuntimeError("operation not permitted when stream is capturing")
        return 100.0

    monkeypatch.setattr("aerie.engine.kernels.product_choice.microseconds", refused)
    assert chosen_of({"triton": PRODUCT})(weight(), Use.ADDED) is None


@pytest.mark.parametrize("use", Use)
def test_a_projection_takes_it_for_its_use_and_numbers_of_tokens(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    own, counted = weight(), list[int]()

    def counting(x: Tensor, weight: Tensor, **given: Any) -> Tensor:
        counted.append(len(x))
        return PRODUCT(x, weight, **given)

    made, plain, norm = Projection(own), Projection(own), RmsNorm(torch.full((128,), 0.5), 1e-5)
    monkeypatch.setattr(made, "_skinny", Chosen(own, use, dict.fromkeys((2, 3), counting)))

    def results(one: Projection, x: Tensor) -> dict[Use, Tensor]:
        return {
            Use.PLAIN: one(x),
            Use.NORMED: one(x, norm),
            Use.GATED: one.gated(x, norm, gated),
            Use.ADDED: one.add_to(torch.ones(len(x), 64, dtype=DTYPE), x),
            Use.LOGITS: one.wide(x, norm),
        }

    for tokens in (1, 2, 3, 4):
        x = torch.randn(tokens, 128).to(DTYPE)
        found = results(made, x)
        for kind, expected in results(plain, x).items():
            assert found[kind].dtype is (torch.float32 if kind is Use.LOGITS else DTYPE)
            torch.testing.assert_close(found[kind], expected, atol=2e-2, rtol=2e-2)
    twice = use in (Use.PLAIN, Use.NORMED)  # for itself, and for what another use has no kernel for
    assert counted == [2, 2, 3, 3] if twice else counted == [2, 3]
    assert Kernels()[skinny] is projection.skinny and skinny(own, use) is None


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

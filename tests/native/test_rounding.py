"""Whether heads are rounded to 8 bits: by trials where dot products serve, always where they do not."""

from collections.abc import Mapping, Sequence

import pytest
import torch

from aerie.engine.model.config import Rope
from aerie.engine.model.matrix import rounded
from aerie.native import rounding
from aerie.native.products import Multiplier, Panels, pack_int8_for
from aerie.native.rounding import int8_pays
from aerie.native.trials import AMX, DOTS, FP16, PANELS, PanelTrial, Way
from aerie.spec.heads.config import HeadConfig
from tests.native.cpp_here import needs_amx, needs_cpp

pytestmark = needs_cpp

SHAPES = [(1024, 1024), (512, 512)]


def timed(monkeypatch: pytest.MonkeyPatch, stored: dict[int, float], in_int8: dict[int, float]) -> None:
    """Trials with given outcomes, of weights that are not multiplied."""

    def measured(ways: Mapping[Way, object], counts: Sequence[int], **_: object) -> dict[Way, dict[int, float]]:
        return {way: in_int8 if way.product == "int8" else stored for way in ways}

    monkeypatch.setattr(rounding, "least_seconds", measured)


WAYS = [Way(DOTS, 1, False, Multiplier.DOTS), Way(AMX, 1, False, Multiplier.AMX_BF16)]


@pytest.mark.parametrize("way", [WAYS[0], pytest.param(WAYS[1], marks=needs_amx)])
@pytest.mark.parametrize(("many", "pays"), [(0.9, True), (1.9, True), (4.5, False)])
def test_the_faster_of_both_serves_over_all_numbers_of_tokens(
    monkeypatch: pytest.MonkeyPatch, many: float, pays: bool, way: Way
) -> None:
    timed(monkeypatch, dict.fromkeys(rounding.COUNTS, 1.0), {1: 0.5, 4: 0.5, 16: many, 64: 1.0})
    assert int8_pays(SHAPES, way) is pays


@pytest.mark.parametrize("way", [WAYS[0], pytest.param(WAYS[1], marks=needs_amx)])
def test_what_is_timed_is_what_serves(monkeypatch: pytest.MonkeyPatch, way: Way) -> None:
    timed: list[int] = []

    def measured(ways: Mapping[Way, PanelTrial], counts: Sequence[int], **_: object) -> dict[Way, dict[int, float]]:
        timed.extend(trial._matrices[0].multiplier for trial in ways.values())
        return {one: dict.fromkeys(counts, 1.0) for one in ways}

    monkeypatch.setattr(rounding, "least_seconds", measured)
    int8_pays(SHAPES, way)
    matrix = rounded(torch.randn(64, 64))
    served = pack_int8_for(way.multiplier)(matrix)
    assert isinstance(served, Panels) and timed == [way.multiplier, served.matrix(None).multiplier]


@pytest.mark.parametrize("way", [Way(PANELS, 1), Way(FP16, 1)])
def test_sums_in_fp32_are_faster_over_fewer_bytes(monkeypatch: pytest.MonkeyPatch, way: Way) -> None:
    monkeypatch.delattr(rounding, "least_seconds")
    assert int8_pays(SHAPES, way)


def test_small_heads_are_not_worth_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(rounding, "least_seconds")
    assert all(int8_pays([(64, 64)], way) for way in WAYS)


def test_a_head_names_the_matrices_that_it_is_served_with() -> None:
    head = HeadConfig("eagle3", 2, 256, 320, (1, 2, 3), 8, 4, 64, 768, 1e-6, 2048, 1024, Rope())
    layer = [(256, 512), (1536, 256), (256, 768)]
    assert head.matrices == [(256, 960), (1024, 512), *layer, (1024, 256), *layer, (1024, 256)]

"""`aerie probe kernels`: every matrix of a layer, every layout, every count of tokens, every instruction set."""

from pathlib import Path

import pytest

from aerie.engine.model.config import read_model_config
from aerie.native.march import LEVELS, runnable
from aerie.native.trials import shapes_of
from aerie.probe.kernels import Measure, measure_kernels, measure_marches
from tests.native.cpp_here import needs_cpp
from tests.spec import models


def measure_of(folder: Path) -> Measure:
    model = read_model_config(models.write_target(folder / "target"))
    return Measure(shapes_of(model), model.layers, tokens=(1, 3), seconds=0.0)


def test_every_matrix_is_measured_in_every_layout(tmp_path: Path) -> None:
    cells = measure_kernels(measure_of(tmp_path))
    assert {cell["matrix"] for cell in cells} == {"qkv", "output", "gate_up", "down", "layer"}
    assert {cell["layout"] for cell in cells} >= {"rows", "columns"}
    assert len(cells) == 5 * len({cell["layout"] for cell in cells}) * 2
    for cell in cells:
        assert cell["microseconds"] > 0 and cell["gmacs"] > 0
        assert cell["layout"] != "columns" or cell["over_columns"] == 1
        assert cell["layout"].startswith("panels") or cell["over_torch"] <= 1
        assert cell["over_one"] > 0 and (cell["tokens"] > 1 or cell["over_one"] == 1)
    layers = [cell["microseconds"] for cell in cells if cell["matrix"] == "layer"]
    assert sum(layers) == pytest.approx(sum(cell["microseconds"] for cell in cells) / 2)


@needs_cpp
def test_our_own_products_are_measured_on_what_was_asked_for(tmp_path: Path) -> None:
    march = runnable()[0].name
    foreign = next(level.name for level in LEVELS.values() if level.foreign)
    cells = measure_marches(measure_of(tmp_path), [march, foreign])
    assert {cell["march"] for cell in cells} == {march}, "and never on what this machine lacks"
    ours = [cell for cell in cells if cell["layout"].startswith("panels in tiles of ")]
    assert len(ours) == 5 * 2 * 2
    assert len([cell for cell in cells if (cell["of_best_choice"] or 0) > 0]) == 5 * 2, "one layout serves"
    for cell in ours:
        assert cell["kernel_set"].startswith(march) and cell["over_torch"] > 0
        assert cell["of_peak"] > 0 and cell["of_bandwidth"] > 0

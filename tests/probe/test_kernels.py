"""`aerie probe kernels`: every matrix of a layer, every layout, every count of tokens."""

from pathlib import Path

from aerie.engine.model.config import read_model_config
from aerie.probe.kernels import measure_kernels
from tests.spec import models


def test_every_matrix_is_measured_in_every_layout(tmp_path: Path) -> None:
    model = read_model_config(models.write_target(tmp_path / "target"))
    cells = measure_kernels(model, tokens=(1, 3), rounds=2, calls=2)
    assert {cell["matrix"] for cell in cells} == {"qkv", "output", "gate_up", "down"}
    assert {cell["layout"] for cell in cells} >= {"rows", "columns", "served"}
    assert len(cells) == 4 * len({cell["layout"] for cell in cells}) * 2
    for cell in cells:
        assert cell["microseconds"] > 0
        assert cell["layout"] != "columns" or cell["over_columns"] == 1

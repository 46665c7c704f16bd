"""What passes a GPU's check: answers that differ at a near tie do, in fp32 too, and others do not."""

from typing import Any

import pytest

from aerie.contracts.config import Config
from aerie.probe import gpu_check
from tests.probe.conftest import make_lane


@pytest.mark.parametrize(("identical", "unexplained", "passes"), [(1.0, 0, True), (0.9, 0, True), (0.9, 1, False)])
def test_tokens_may_differ_where_a_margin_explains_it(
    config: Config, monkeypatch: pytest.MonkeyPatch, identical: float, unexplained: int, passes: bool
) -> None:
    """The order in which a product is added up follows the number of its rows, which drafting changes."""
    cell = {"mode": "chain", "dtype": "float32", "temperature": 0.0, "concurrency": 1}
    found = cell | {"identical": identical, "unexplained": unexplained}

    def compare(_: Config, __: Any, ___: Any, grid: Any) -> list[Any]:
        assert grid.dtypes == ("float32",)
        return [found]

    monkeypatch.setattr(gpu_check, "compare", compare)
    (checked,) = gpu_check.check_speculation(config, make_lane, dtypes=("float32",), requests=2)
    assert checked["passed"] is passes and f"unexplained {unexplained}" in checked["detail"]

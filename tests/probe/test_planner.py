"""The planner's probe on a tiny pair: every mode answers the same, and intervals cover."""

import pytest

from aerie.contracts.config import Config
from aerie.contracts.shape import DraftShape
from aerie.probe.planner import interval, measure_planner
from tests.probe.conftest import PROMPTS, make_lane


@pytest.mark.parametrize("poison", [True, False])
def test_all_modes_answer_the_same(config: Config, poison: bool) -> None:
    """Without poison the planner is calibrated on the lane first."""
    scheduler = config.scheduler.model_copy(update={"poison": poison})
    cells = measure_planner(
        config.model_copy(update={"scheduler": scheduler}),
        PROMPTS,
        make_lane,
        loads=(1, 3),
        temperatures=(0.0, 0.9),
        shapes=[DraftShape(2, 1, 3)],
        windows=1,
        max_tokens=12,
    )
    assert [cell["mode"] for cell in cells[:4]] == ["off", "planner", "fixed", "chain 2"]
    assert len(cells) == 16 and all(cell["identical"] == 1.0 for cell in cells)
    assert all(cell["over_off"] == 1.0 for cell in cells if cell["mode"] == "off")


def test_an_interval_covers_the_median_and_narrows() -> None:
    wide, narrow = interval([0.8, 1.0, 1.2]), interval([0.99, 1.0, 1.01] * 5)
    assert wide[0] <= 1.0 <= wide[1] and wide == [0.8, 1.2]
    assert 0.99 <= narrow[0] <= 1.0 <= narrow[1] <= 1.01

"""Steps before which the lane waited for the host: the planner adds none, and one that did would be seen."""

import pytest

from aerie.contracts.config import Config
from aerie.lane import make_lane
from aerie.probe.planner import Load, grid, measure_planner, modes_of
from aerie.probe.planner_cells import NULL, OFF, PLANNER
from tests.probe.conftest import PROMPTS

WAITING = "a planner that waits"


@pytest.mark.parametrize("lane", ["inline", "process"])
def test_the_planner_adds_no_waits(config: Config, monkeypatch: pytest.MonkeyPatch, lane: str) -> None:
    """Beside it, one whose scheduler launches a step only once the one before has settled."""

    def with_a_waiting_one(config: Config, shapes):
        modes = modes_of(config, shapes)
        scheduler = modes[PLANNER].scheduler.model_copy(update={"overlap": False})
        return modes | {WAITING: modes[PLANNER].model_copy(update={"scheduler": scheduler})}

    monkeypatch.setattr("aerie.probe.planner.modes_of", with_a_waiting_one)
    engine = config.engine.model_copy(update={"lane": lane, "kv_tokens": 4096, "threads": 1})
    scheduler = config.scheduler.model_copy(update={"poison": False})
    own = config.model_copy(update={"engine": engine, "scheduler": scheduler})
    place = grid([Load("long", PROMPTS, 40)], [(0.0, 0.9)], [2])
    [found] = measure_planner(own, make_lane, place, measured=0.05, warm=10)
    cells = {cell["mode"]: cell for cell in found}
    noise = max(0.0, cells[NULL]["added_waits_interval"][1])
    assert cells[PLANNER]["added_waits_interval"][0] <= noise
    assert cells[WAITING]["added_waits_interval"][0] > noise
    assert cells[OFF]["alone"] < 0.1 < cells[WAITING]["alone"], "the first launch of a slice does not count"

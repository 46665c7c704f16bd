"""A GPU's bench takes seconds for every step that a lane records: it records what it measures."""

from aerie.contracts.config import Config
from aerie.contracts.step import Lane
from aerie.probe.gpu_bench import Runs, measure_plain
from tests.probe.conftest import make_lane


def test_a_lane_has_the_rows_that_are_measured_and_none_that_edit(config: Config) -> None:
    made: list[Lane] = []

    def noted(own: Config) -> Lane:
        made.append(make_lane(own))
        return made[-1]

    (cell,) = measure_plain(config, noted, Runs((2,), prompt=5, steps=1, overlaps=(True,)))
    assert cell["batch"] == 2 and [(lane.capacity.rows, lane.capacity.edit_slots) for lane in made] == [(2, 0)]

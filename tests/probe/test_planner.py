"""The planner's probe on a tiny pair: every mode answers the same on its own share of one lane, and intervals cover."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from aerie.contracts.config import Config
from aerie.contracts.shape import DraftShape
from aerie.probe.planner import Load, grid, key_of, measure_planner
from aerie.probe.planner_plot import draw
from tests.probe.conftest import PROMPTS, make_lane

LOAD = Load("short", PROMPTS, 12)


@pytest.mark.parametrize("poison", [True, False])
def test_all_modes_answer_the_same(config: Config, poison: bool) -> None:
    """Without poison the planner is calibrated on the lane first."""
    scheduler = config.scheduler.model_copy(update={"poison": poison, "max_running": 1})
    engine = config.engine.model_copy(update={"lane": "inline", "kv_tokens": 4096})
    places = grid([LOAD], [(0.0,), (0.0, 0.9)], [1, 3])
    cells = [
        cell
        for found in measure_planner(
            config.model_copy(update={"scheduler": scheduler, "engine": engine}),
            make_lane,
            places,
            shapes=[DraftShape(2, 1, 3)],
            measured=0.2,
            warm=5,
            known={places[0].key},
        )
        for cell in found
    ]
    assert [cell["mode"] for cell in cells[:5]] == ["off", "off again", "planner", "fixed", "chain 2"]
    assert len(cells) == 15 and {key_of(cell) for cell in cells} == {place.key for place in places[1:]}
    assert all(cell["identical"] == 1.0 and cell["compared"] > 0 for cell in cells)
    assert all(cell["over_off"] == 1.0 and cell["cpu_interval"] == [1.0, 1.0] for cell in cells[::5])
    assert all(cell["interval"][0] <= cell["interval"][1] for cell in cells)
    assert all(cell["ttft_requests"] > 0 and 0 <= cell["alone"] < 1 for cell in cells)
    assert all(cell["added_waits_interval"] == [0.0, 0.0] for cell in cells[::5])
    assert all(("cpu_over_best" in cell) == (cell["mode"] == "planner") for cell in cells)
    assert {cell["cpu_best"] for cell in cells[2::5]} <= {"off", "fixed", "chain 2"}
    assert all(("decision_us" in cell) == (cell["mode"] == "planner") for cell in cells)
    assert all(cell["decision_us_p99"] > 0 for cell in cells[2::5])


@pytest.mark.parametrize(("rows", "limits"), [(1, [12, 12]), (3, [4, 8, 12, 12, 12]), (24, [1, 1, 1, 2, 2])])
def test_the_first_answers_end_one_after_the_other(rows: int, limits: list[int]) -> None:
    (place,) = grid([LOAD], [(0.0,)], [rows])
    asked = place.requests(speculation=True)
    assert [asked(number).sampling.max_tokens for number in range(len(limits))] == limits


def test_a_cell_ends_once_its_intervals_are_narrow(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerie.probe.planner._SLICE", 0.02)
    engine = config.engine.model_copy(update={"lane": "inline"})
    own = config.model_copy(update={"engine": engine})
    place = grid([LOAD], [(0.0,)], [1])
    [cells] = measure_planner(own, make_lane, place, measured=600.0, warm=2, narrow=1e6)
    assert cells[0]["rounds"] == 64


def test_no_cell_begins_when_the_time_is_over(config: Config) -> None:
    engine = config.engine.model_copy(update={"lane": "inline"})
    own = config.model_copy(update={"engine": engine})
    assert not list(measure_planner(own, make_lane, grid([LOAD], [(0.0,)], [1]), seconds=0.0))


@pytest.mark.parametrize("loads", [("short",), ("short", "long", "edits")])
def test_a_picture_shows_every_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: tuple[str, ...]) -> None:
    cells = [
        {"load": load, "mode": mode, "rows": rows, "temperature": kind, "cpu_over_off": 1.1, "cpu_interval": [1.0, 1.2]}
        for load in loads
        for mode in ("off", "planner", "chain 1")
        for rows in (1, 16)
        for kind in ("0", "0+1.2")
    ]
    drawn: list[Figure] = []
    monkeypatch.setattr("aerie.probe.planner_plot.plt.close", drawn.append)
    draw(tmp_path / "planner.png", cells, by="cpu_over_off")
    assert (tmp_path / "planner.png").read_bytes().startswith(b"\x89PNG")
    [figure] = drawn
    titles = [panel.get_title() for panel in figure.axes]
    assert titles == [f"{load}, T = {kind}" for load in loads for kind in ("0", "0+1.2")]
    assert all(len(panel.lines) == 3 for panel in figure.axes), "two modes and the line of no speculation"

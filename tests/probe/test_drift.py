"""A load that changes, on a tiny pair: all modes go through all phases alike; totals are those of all laps."""

import pytest

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.shape import DraftShape
from aerie.probe.decisions import AGREE, WINDOW, Decisions, recovery
from aerie.probe.drift import measure_drift, totals
from aerie.probe.planner import Load, Place
from tests.probe.conftest import PROMPTS, make_lane

PHASES = [Place(Load("short", PROMPTS, 8), (0.0,), 1), Place(Load("long", PROMPTS, 20), (0.0, 0.9), 3)]


@pytest.fixture(scope="module")
def own(config: Config) -> Config:
    engine = config.engine.model_copy(update={"lane": "inline", "kv_tokens": 4096})
    return config.model_copy(update={"engine": engine})


def test_every_mode_goes_through_every_phase_of_a_lap(own: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerie.probe.planner._SLICE", 0.02)
    cells = [
        cell
        for lap in range(2)
        for cell in measure_drift(own, make_lane, PHASES, shapes=[DraftShape(2, 1, 3)], measured=0.01, warm=3, lap=lap)
    ]
    modes = ["off", "off again", "planner", "fixed", "chain 2"]
    assert [cell["mode"] for cell in cells] == 4 * modes
    assert [cell["load"] for cell in cells[::5]] == ["short", "long", "long", "short"], "another phase comes first"
    assert all(len(cell["tokens"]) == len(cell["seconds"]) == 8 and min(cell["tokens"]) > 0 for cell in cells)
    for phase in range(4):
        tokens = [sum(cell["tokens"]) for cell in cells[5 * phase : 5 * phase + 5]]
        assert max(tokens) - min(tokens) <= 2 * 3 * 4, "but for what the last step of a slice goes beyond"


def test_phases_that_do_not_change_are_an_error(own: Config) -> None:
    with pytest.raises(ConfigError, match="two phases"):
        measure_drift(own, make_lane, PHASES[:1])


def lap(number, seconds):
    """A phase of a lap in which modes took so many seconds for 10 tokens."""
    return [
        {"mode": mode, "lap": number, "tokens": [5, 5], "seconds": [one / 2] * 2, "cpu_seconds": [one] * 2}
        for mode, one in seconds.items()
    ]


def test_totals_weigh_phases_by_their_time() -> None:
    """A chain that doubles the speed of one phase and halves that of the other is slower over both."""
    cells = lap(0, {"off": 1.0, "planner": 0.5, "chain 3": 0.5}) + lap(1, {"off": 1.0, "planner": 1, "chain 3": 2})
    cells[1]["recovery_steps"], cells[4]["recovery_steps"] = 40, None
    off, planner, chain = totals(cells)
    assert chain["over_off"] == pytest.approx(0.8) and planner["over_off"] == pytest.approx(4 / 3)
    assert chain["planner_over"] == pytest.approx(2.5 / 1.5) and planner["planner_over"] == 1.0
    assert chain["planner_interval"][0] <= chain["planner_over"] <= chain["planner_interval"][1]
    assert planner["recovery_steps"] == 40 and "recovery_steps" not in off and off["laps"] == 2


@pytest.mark.parametrize("drafts", [True, False])
def test_a_planner_has_recovered_when_it_does_what_it_settles_on(drafts: bool) -> None:
    steps = [not drafts] * 30 + [drafts] * 100
    assert recovery(steps) == 30 - (WINDOW - AGREE)
    assert recovery([drafts] * 100) == 0
    assert recovery([drafts] * (2 * WINDOW - 1)) is None and recovery([True, False] * 100) is None


def test_decisions_are_timed_and_kept() -> None:
    class Planner:
        def decide(self):
            return (DraftShape(2, 1, 3) if next(drafts) else DraftShape(0, 1, 1)), None

        def rests(self):
            return next(rests)

        def begin(self):
            pass

        pays = recomputes = prepare = settle = end = begin

    drafts, rests = iter([True, False]), iter([True, False])
    planner = Planner()
    decisions = Decisions().watch(planner)  # type: ignore[arg-type]
    planner.decide()
    planner.decide()
    assert planner.rests() and not planner.rests()
    planner.settle()
    assert decisions.drafted == [True, False, False] and len(decisions.chosen) == 3
    assert decisions.seconds >= sum(decisions.chosen) > 0
    assert decisions.cell()["decision_us"] == pytest.approx(1e6 * decisions.seconds / 3)

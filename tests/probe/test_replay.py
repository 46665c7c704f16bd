"""Replay equals real runs step for step, whatever is drafted; and simulated arrivals under every policy."""

import pytest

from aerie.contracts.config import Config
from aerie.contracts.shape import DraftShape
from aerie.probe.drive import ask, drive
from aerie.probe.recording import plain_chains, record
from aerie.probe.replays import measure_replays
from aerie.probe.shapes import for_lane
from aerie.probe.simulation import (
    ARRIVALS,
    H100,
    HINDSIGHT,
    OFF,
    PLANNER,
    Machine,
    arrivals,
    compared,
    roofline_machine,
    simulate,
)
from tests.probe.conftest import PROMPTS, make_lane

DEPTH = 3


@pytest.fixture(scope="module")
def recorded(config: Config):
    requests = ask(PROMPTS * 2, [0.0, 0.9], max_tokens=40, ignore_eos=True)
    return requests, record(config, requests, make_lane, depth=DEPTH, rows=4)


def price(work):
    return {"verify": 1e-3 + 1e-5 * work.tokens, "draft": 1e-4 * work.levels, "extend": 1e-4 * (work.pairs > 0)}


MACHINE = Machine("made up", price, 1e-4, True)


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_a_replay_equals_a_real_run_step_for_step(config: Config, recorded, depth: int) -> None:
    requests, recordings = recorded
    wide = for_lane(config, [DraftShape(DEPTH, 1, DEPTH + 1)], rows=4)
    lane = make_lane(wide)
    chosen = plain_chains(wide, max(depth, 1))
    own = [r if depth else plain(r) for r in requests]
    run = drive(lane, chosen, own, concurrency=4)
    replayed = simulate(config, recordings, MACHINE, depth or OFF, rows=4, depth=DEPTH)
    assert {answer.request.id: answer.replies for answer in run.answers} == replayed.replies
    assert run.tokens == [recording.tokens for recording in recordings]
    if depth:
        assert any(count > 1 for answer in run.answers for count in answer.replies), "a head that is never right"


def plain(request):
    from msgspec.structs import replace

    from aerie.contracts.sampling import SpeculationParams

    return replace(request, speculation=SpeculationParams(enabled=False))


@pytest.mark.parametrize("kind", ARRIVALS)
def test_all_policies_answer_everything(config: Config, recorded, kind: str) -> None:
    _, recordings = recorded
    times = arrivals(kind, len(recordings), 200.0)
    assert times == sorted(times) and len(times) == len(recordings)
    cells = list(compared(config, recordings, MACHINE, [1, 3], depth=DEPTH, rows=2, times=times))
    assert [cell["policy"] for cell in cells] == ["off", "chain 1", "chain 3", "planner", "hindsight"]
    assert cells[0]["over_off"] == 1.0 and all(cell["latency"] > 0 for cell in cells)


def test_hindsight_is_not_beaten_by_much(config: Config, recorded) -> None:
    _, recordings = recorded
    speeds = {}
    for policy in (OFF, 1, 3, PLANNER, HINDSIGHT):
        run = simulate(config, recordings, MACHINE, policy, rows=1, depth=DEPTH)
        speeds[policy] = run.tokens / run.seconds
    assert speeds[HINDSIGHT] >= 0.98 * max(speeds.values())


def test_the_command_measures_all_machines(config: Config, recorded) -> None:
    _, recordings = recorded
    fresh = config.model_copy(update={"scheduler": config.scheduler.model_copy(update={"poison": False})})
    cells = measure_replays(fresh, recordings, make_lane, depths=[1], depth=DEPTH, loads=[1, 2])
    assert len({cell["machine"] for cell in cells}) == 3
    assert {cell["arrivals"] for cell in cells} == {"steady", *ARRIVALS}
    assert len(cells) == 3 * (2 + len(ARRIVALS)) * 4


def test_a_roofline_is_labelled(config: Config, recorded) -> None:
    _, recordings = recorded
    cells = list(compared(config, recordings, roofline_machine("H100", H100), [3], depth=DEPTH, rows=2))
    assert all(cell["machine"].startswith("simulated") for cell in cells)

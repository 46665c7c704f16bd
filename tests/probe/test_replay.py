"""Replay equals real runs step for step: chains, trees, chains that the head's confidence ends; simulated arrivals."""

from dataclasses import replace

import pytest

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.shape import DraftShape
from aerie.probe.arrivals import ARRIVALS, arrivals
from aerie.probe.drive import ask, drive
from aerie.probe.recording import always, chain, record
from aerie.probe.replays import measure_replays
from aerie.probe.shapes import for_lane
from aerie.probe.simulation import (
    H100,
    HINDSIGHT,
    OFF,
    PLANNER,
    Machine,
    compared,
    roofline_machine,
    simulate,
)
from tests.probe.conftest import PROMPTS, make_lane

DEPTH = 3


TREES = (DraftShape(3, 2, 6), DraftShape(2, 3, 7))
SURE = 0.02
"""A threshold that ends some of the random head's chains, and not others."""


@pytest.fixture(scope="module")
def recorded(config: Config):
    requests = ask(PROMPTS * 2, [0.0, 0.9], max_tokens=40, ignore_eos=True)
    spec = config.spec.model_copy(update={"confidence_threshold": SURE})
    doubting = config.model_copy(update={"spec": spec})
    return requests, record(doubting, requests, make_lane, depth=DEPTH, trees=TREES, rows=4)


def price(work):
    return {"verify": 1e-3 + 1e-5 * work.tokens, "draft": 1e-4 * work.levels, "extend": 1e-4 * (work.pairs > 0)}


HOST = 1e-4
MACHINE = Machine("made up", price, lambda work: HOST)


@pytest.mark.parametrize("policy", [OFF, 1, 2, 3, *TREES])
def test_a_replay_equals_a_real_run_step_for_step(config: Config, recorded, policy) -> None:
    requests, recordings = recorded
    shape = policy if isinstance(policy, DraftShape) else chain(1 if policy == OFF else policy)
    wide = for_lane(config, [chain(DEPTH), *TREES], rows=4)
    own = [plain(request) for request in requests] if policy == OFF else requests
    run = drive(make_lane(wide), always(wide, shape), own, concurrency=4)
    replayed = simulate(config, recordings, MACHINE, policy, rows=4, depth=DEPTH)
    assert {answer.request.id: answer.replies for answer in run.answers} == replayed.replies
    assert {answer.request.id: answer.usage.drafted for answer in run.answers} == replayed.drafted
    assert run.tokens == [recording.tokens for recording in recordings]
    if policy != OFF:
        assert any(count > 1 for answer in run.answers for count in answer.replies), "a head that is never right"


@pytest.mark.parametrize("rows", [1, 3])
def test_a_replay_ends_chains_where_the_confidence_does(config: Config, recorded, rows: int) -> None:
    """Step by step without overlap: of a row that has ended, a replay cannot know what is drafted."""
    requests, recordings = recorded
    scheduler = config.scheduler.model_copy(update={"overlap": False})
    config = config.model_copy(update={"scheduler": scheduler})
    doubting = always(for_lane(config, [chain(DEPTH)], rows=4), chain(DEPTH), threshold=SURE)
    run = drive(make_lane(doubting), doubting, requests, concurrency=rows)
    replayed = simulate(config, recordings, MACHINE, DEPTH, rows=rows, depth=DEPTH, confident=True)
    assert {answer.request.id: answer.replies for answer in run.answers} == replayed.replies
    assert {answer.request.id: answer.usage.drafted for answer in run.answers} == replayed.drafted
    levels = {count for recording in recordings for count in recording.sure}
    assert len(levels) > 1, "a threshold that makes no difference"
    always_drafted = simulate(config, recordings, MACHINE, DEPTH, rows=rows, depth=DEPTH)
    assert sum(replayed.drafted.values()) < sum(always_drafted.drafted.values())


def plain(request):
    from msgspec.structs import replace

    from aerie.contracts.sampling import SpeculationParams

    return replace(request, speculation=SpeculationParams(enabled=False))


@pytest.mark.parametrize("kind", ARRIVALS)
def test_all_policies_answer_everything(config: Config, recorded, kind: str) -> None:
    _, recordings = recorded
    times = arrivals(kind, len(recordings), 200.0)
    assert times == sorted(times) and len(times) == len(recordings)
    statics = [1, 3, TREES[0]]
    cells = list(compared(config, recordings, MACHINE, statics, depth=DEPTH, rows=2, times=times))
    assert [cell["policy"] for cell in cells] == ["off", "chain 1", "chain 3", "tree 3,2,6", "planner", "hindsight"]
    assert cells[0]["over_off"] == 1.0 and all(cell["latency"] > 0 for cell in cells)


def test_an_inline_lane_does_nothing_while_the_host_works(config: Config, recorded) -> None:
    _, recordings = recorded
    beside, after = (
        simulate(config, recordings, replace(MACHINE, inline=inline), OFF, rows=1, depth=DEPTH)
        for inline in (False, True)
    )
    steps = sum(len(replies) for replies in beside.replies.values())
    assert after.seconds - beside.seconds == pytest.approx(HOST * steps, rel=0.1)


def test_hindsight_is_not_beaten_by_much(config: Config, recorded) -> None:
    _, recordings = recorded
    speeds = {}
    for policy in (OFF, 1, 3, *TREES, PLANNER, HINDSIGHT):
        run = simulate(config, recordings, MACHINE, policy, rows=1, depth=DEPTH)
        speeds[policy] = run.tokens / run.seconds
    assert speeds[HINDSIGHT] >= 0.98 * max(speeds.values())


def test_the_command_measures_all_machines(config: Config, recorded) -> None:
    _, recordings = recorded
    fresh = config.model_copy(update={"scheduler": config.scheduler.model_copy(update={"poison": False})})
    cells = measure_replays(fresh, recordings, make_lane, statics=[1], depth=DEPTH, loads=[1, 2])
    assert len({cell["machine"] for cell in cells}) == 3
    assert {cell["arrivals"] for cell in cells} == {"steady", "better head", "real run", *ARRIVALS}
    assert len(cells) == 3 * ((2 + len(ARRIVALS)) * 4 + 2) + 6
    real = [(cell["rows"], cell["policy"]) for cell in cells if cell["arrivals"] == "real run"]
    assert real == [(rows, policy) for rows in (1, 2) for policy in ("off", "chain 1", "chain 3")]
    assert all(0.2 < cell["replayed_over_real"] < 5 for cell in cells if cell["arrivals"] == "real run")
    better = [cell for cell in cells if cell["arrivals"] == "better head"]
    assert len(better) == 6 and all(0 <= cell["drafting"] <= 1 for cell in better)


def test_more_requests_at_once_than_were_recorded_are_refused(config: Config, recorded) -> None:
    _, recordings = recorded
    with pytest.raises(ConfigError, match=rf"{len(recordings) + 1} requests .*: {len(recordings)} were recorded"):
        measure_replays(config, recordings, make_lane, statics=[1], depth=DEPTH, loads=[1, len(recordings) + 1])


def test_a_roofline_is_labelled(config: Config, recorded) -> None:
    _, recordings = recorded
    cells = list(compared(config, recordings, roofline_machine("H100", H100), [3], depth=DEPTH, rows=2))
    assert all(cell["machine"].startswith("simulated") for cell in cells)

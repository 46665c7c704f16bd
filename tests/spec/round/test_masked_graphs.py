"""Answers held to grammars on a device that runs beside its host: the same as on a CPU, however late a mask is."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from aerie.contracts.config import Config, parse_config
from aerie.contracts.grammar import Grammar
from aerie.contracts.messages import Failed, Finished, Generate, Tokens
from aerie.contracts.sampling import SamplingParams
from aerie.contracts.step import Lane
from aerie.engine.lanes.cuda import CudaLane
from aerie.engine.lanes.inline import InlineLane
from aerie.engine.step.graphs import Graphs
from aerie.scheduler import Scheduler
from aerie.scheduler.planner.goodput import Goodput
from aerie.worker import build_launcher
from tests.engine.stand_in import HeldDense, StandIn
from tests.spec import models
from tests.spec.alphabet import END, write_tokenizer

Over = Callable[[Any], bool]
SHAPES: dict[str, dict[str, Any]] = {
    "off": {"head": "none"},
    "chain": {"depth": 3, "topk": 1, "nodes": 4},
    "tree": {"depth": 3, "topk": 2, "nodes": 7},
}
ROWS = 4
MOST_TURNS = 5_000
GRAMMARS = [
    Grammar(kind="regex", text="[a-f]{2,9}(0|1)+"),
    Grammar(kind="choice", text=json.dumps(["abcdefgh", "abcd0123", "xyz"])),
    Grammar(kind="json_schema", text=json.dumps({"type": "array", "items": {"enum": [1, 22, "abc"]}, "maxItems": 4})),
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = models.write_target(tmp_path_factory.mktemp("spelling"), end_id=END)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def config_of(target: Path, head_folder: Path) -> Callable[..., Config]:
    def made(shape: str, *, overlap: bool = True) -> Config:
        return parse_config(
            {
                "model": {"path": str(target), "dtype": "float32"},
                "engine": {"kv_tokens": 1024, "kernels": "torch", "edit_slots": 2},
                "scheduler": {"max_running": ROWS, "poison": True, "overlap": overlap},
                "spec": {"head": str(head_folder), "planner": "fixed"} | SHAPES[shape],
            }
        )

    return made


def requests() -> list[Generate]:
    """Two thirds of them with a grammar; some with penalties, filters, bans or log probabilities."""
    asked = []
    for number in range(9):
        sampling = SamplingParams(
            temperature=(0.0, 0.9, 1.5)[number // 3],
            max_tokens=12,
            min_tokens=3 if number == 4 else 0,
            top_k=5 if number in (4, 7) else 0,
            repetition_penalty=1.4 if number in (1, 2, 8) else 1.0,
            logprobs=1 if number == 3 else -1,
            seed=number,
        )
        grammar = None if number % 3 == 2 else GRAMMARS[number % len(GRAMMARS) if number % 2 else 2]
        asked.append(Generate(id=str(number), prompt=[5, 9 + number, 30], sampling=sampling, grammar=grammar))
    return asked


def answers(
    lane: Lane, own: Config, asked: Sequence[Generate] | None = None, planner: Goodput | None = None
) -> tuple[dict[str, list[int]], Scheduler]:
    texts: dict[str, list[int]] = {}
    scheduler = Scheduler(lane, own, planner=planner)
    for one in requests() if asked is None else asked:
        scheduler.submit(one)
    for _ in range(MOST_TURNS):
        if scheduler.idle:
            break
        for reply in scheduler.iterate():
            assert not isinstance(reply, Failed), reply
            if isinstance(reply, Tokens):
                texts.setdefault(reply.id, []).extend(reply.ids)
            elif isinstance(reply, Finished):
                assert reply.usage.completion_tokens == len(texts[reply.id])
    assert scheduler.idle, f"{scheduler.rows.running} rows and {len(scheduler.queue)} requests are still open"
    scheduler.check()
    return texts, scheduler


@pytest.fixture(scope="module")
def lane_of(config_of: Callable[..., Config]) -> Iterator[Callable[[str], CudaLane]]:
    """Lanes on the stand-in, one for each shape."""

    @cache
    def made(shape: str) -> CudaLane:
        stand_in = StandIn()
        with pytest.MonkeyPatch.context() as patch:
            for module in ("aerie.spec.build", "aerie.engine.build"):
                patch.setattr(f"{module}.runtime_of", lambda device: stand_in)
            for module in ("aerie.spec.drafters.head_drafter", "aerie.engine.build"):
                patch.setattr(f"{module}.make_attention", HeldDense)
            for module in ("aerie.spec.build", "aerie.engine.step.plain_graphs"):
                patch.setattr(f"{module}.row_buckets", lambda most: [ROWS])
            lanes.append(CudaLane(build_launcher(config_of(shape))))
        return lanes[-1]

    lanes: list[CudaLane] = []
    yield made
    for lane in lanes:
        lane.close()


def never(event: Any) -> bool:
    return False


def always(event: Any) -> bool:
    return True


def sometimes(seed: int) -> Over:
    coin = random.Random(seed)
    return lambda event: coin.random() < 0.5


@pytest.fixture(scope="module")
def expected(config_of: Callable[..., Config]) -> dict[str, list[int]]:
    """Those of a CPU, without drafts."""
    own = config_of("off")
    with closing(InlineLane(build_launcher(own))) as lane:
        return answers(lane, own)[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("overlap", [True, False])
def test_answers_are_those_of_a_cpu(
    config_of: Callable[..., Config],
    lane_of: Callable[[str], CudaLane],
    expected: dict[str, list[int]],
    shape: str,
    overlap: bool,
) -> None:
    lane = lane_of(shape)
    assert lane.capacity.grammars
    lane._worker.state.masked.passed = never
    texts, scheduler = answers(lane, config_of(shape, overlap=overlap))
    assert texts == expected
    masking = scheduler.stats.masking
    assert masking.masks and masking.choices >= masking.masks and not masking.late
    assert shape == "off" or scheduler.stats.drafted


@pytest.mark.parametrize(("shape", "over"), [("off", always), ("chain", sometimes(1)), ("tree", always)])
def test_a_late_mask_stalls_its_row_and_changes_no_text(
    config_of: Callable[..., Config],
    lane_of: Callable[[str], CudaLane],
    expected: dict[str, list[int]],
    shape: str,
    over: Over,
) -> None:
    lane = lane_of(shape)
    lane._worker.state.masked.passed = over
    assert answers(lane, config_of(shape))[0] == expected


@pytest.mark.parametrize("shape", SHAPES)
def test_a_mask_costs_a_recording_and_a_wait_for_the_tree_and_nothing_where_there_is_none(
    config_of: Callable[..., Config],
    lane_of: Callable[[str], CudaLane],
    monkeypatch: pytest.MonkeyPatch,
    shape: str,
) -> None:
    lane = lane_of(shape)
    worker = lane._worker
    worker.state.masked.passed = never
    steps: list[Counter[str]] = []
    launch, replay, fetch = worker.launch, Graphs.replay, worker.state.transfer.fetch

    def launched(plan: Any) -> Any:
        steps.append(Counter())
        return launch(plan)

    def replayed(graphs: Graphs, family: Any, bucket: Any) -> Any:
        steps[-1][family] += 1
        return replay(graphs, family, bucket)

    def fetched(words: Any) -> Callable[[], Any]:
        read = fetch(words)
        steps[-1]["sent"] += 1

        def waited() -> Any:
            steps[-1]["wait"] += 1
            return read()

        return waited

    monkeypatch.setattr(worker, "launch", launched)
    monkeypatch.setattr(Graphs, "replay", replayed)
    monkeypatch.setattr(worker.state.transfer, "fetch", fetched)
    found = []
    for grammar in (None, GRAMMARS[0]):
        steps.clear()
        sampling = SamplingParams(temperature=0.9, max_tokens=12, seed=1)
        asked = [Generate(id=id, prompt=[5, 9, 30], sampling=sampling, grammar=grammar) for id in "ab"]
        answers(lane, config_of(shape, overlap=False), asked)
        found.append({frozenset(step.items()) for step in steps if len(step) > 2})  # the others read prompts
    drafts, waits = ({}, 1) if shape == "off" else ({"draft": 1, "extend": 1}, 2)
    assert found[0] == {frozenset({**drafts, "verify": 1, "sent": 1, "wait": 1}.items())}
    assert found[1] == {frozenset({**drafts, "forward": 1, "choose": 1, "sent": waits, "wait": waits}.items())}

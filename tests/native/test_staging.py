"""Steps that are staged before the step before has run: the same answers as from steps staged when they run."""

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerie.contracts.config import parse_config
from aerie.contracts.messages import Abort, Generate, Tokens
from aerie.contracts.sampling import SamplingParams, SpeculationParams
from aerie.contracts.step import StepPlan
from aerie.contracts.worker import Answering, Reading, Run, StagingWorker
from aerie.engine.lanes.inline import InlineLane
from aerie.native.worker import NativeWorker, native_worker
from aerie.scheduler import Scheduler
from tests.engine.rounds import Rounds
from tests.fake_lanes import QueueLane
from tests.native.cpp_here import needs_cpp
from tests.native.whole_steps import make_worker, write_pair
from tests.spec.test_worker import PROMPTS

pytestmark = needs_cpp
CHAIN = {"depth": 3, "topk": 1, "nodes": 4}
RESTING = {"planner": "goodput", "resting_tokens": 5}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp("pair"))


def native(pair: tuple[Path, Path], **spec: Any) -> NativeWorker:
    made = native_worker(make_worker(pair, "float32", **spec))
    assert made is not None
    return made


class StagedLane(QueueLane):
    """Stages a step when it is launched and runs it when it is settled: always after the next one was staged."""

    def __init__(self, worker: NativeWorker) -> None:
        super().__init__(worker)
        self._stage = worker.stage
        self._runs: deque[Run] = deque()

    def launch(self, plan: StepPlan) -> None:
        super().launch(plan)
        self._runs.append(self._stage(plan))

    def _run_one(self) -> None:
        self._plans.popleft()
        late: list[Reading] = []
        self._runs.popleft()(late.append)
        self._outputs.append(late[0]())


def requests(seed: int) -> list[Generate]:
    """Some end at once, so that rows change hands while a step of theirs is in flight; some need the fallback; most
    find a page or more of their prompt in the prefix cache, which a late step of a row's last owner must not change.
    """
    chosen = np.random.default_rng(seed)
    shared = chosen.integers(1, 40, 60).tolist()
    made = []
    for index in range(24):
        params = SamplingParams(
            temperature=float(chosen.choice([0.0, 0.9])),
            top_p=float(chosen.choice([1.0, 0.6])),
            max_tokens=int(chosen.choice([1, 2, 5, 20])),
            logprobs=int(chosen.choice([-1, -1, 2])),
            frequency_penalty=float(chosen.choice([0.0, 0.0, 0.8])),
            seed=index,
        )
        prompt = shared[: int(chosen.integers(0, 60))] + chosen.integers(1, 40, int(chosen.integers(1, 9))).tolist()
        spoken = SpeculationParams(enabled=bool(chosen.random() < 0.7))
        made.append(Generate(id=f"{index}", prompt=prompt, sampling=params, speculation=spoken))
    return made


def answers(scheduler: Scheduler, asked: list[Generate]) -> dict[str, list[int]]:
    """By id. Every third request is aborted at its first token: a row that has not ended has a late step, too."""
    found: dict[str, list[int]] = {request.id: [] for request in asked}
    for request in asked:
        scheduler.submit(request)
    while not scheduler.idle:
        for reply in scheduler.iterate():
            if isinstance(reply, Tokens):
                found[reply.id] += reply.ids
                if int(reply.id) % 3 == 0:
                    scheduler.submit(Abort(id=reply.id))
    return found


@given(seed=st.integers(0, 1000), planner=st.sampled_from(["fixed", "goodput"]))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_answers_are_the_same(pair: tuple[Path, Path], seed: int, planner: str) -> None:
    spec = {"head": str(pair[1]), "depth": 3, "nodes": 4, "planner": planner}
    config = parse_config({"model": {"path": str(pair[0])}, "spec": spec, "scheduler": {"max_running": 8}})
    lanes = InlineLane(native(pair)), StagedLane(native(pair))
    alone, staged = (answers(Scheduler(lane, config), requests(seed)) for lane in lanes)
    assert staged == alone
    assert lanes[1].most_in_flight == 2 and sum(map(len, staged.values())) > 24


class Noting:
    """A worker that keeps the plans of its steps."""

    def __init__(self, worker: NativeWorker) -> None:
        self.capacity = worker.capacity
        self.plans: list[StepPlan] = []
        self._worker = worker

    def step(self, plan: StepPlan, answer: Answering) -> None:
        self.plans.append(plan)
        self._worker.step(plan, answer)

    def close(self) -> None: ...

    @property
    def guides(self) -> None: ...


def some_steps(worker: NativeWorker) -> list[StepPlan]:
    """Of rows that draft, rest, catch up and end, and need the fallback now and then; run already."""
    noting = Noting(worker)
    rounds = Rounds(noting)
    rows = []
    for index, prompt in enumerate(PROMPTS[:2]):
        params = SamplingParams(temperature=0.9 * index, seed=index, max_tokens=24)
        rows.append(rounds.add(index, list(prompt), params, drafting=True))
        rounds.decode(rows, resting=True)
    rounds.decode(rows, behind=2, **CHAIN)
    rows.append(rounds.add(2, list(PROMPTS[0]), SamplingParams(temperature=0.0, logprobs=1, max_tokens=24)))
    rounds.decode(rows[2:])
    for _ in range(3):
        rounds.decode(rows[:2], resting=True)
    rounds.decode(rows[:2], behind=3, **CHAIN)
    rounds.decode(rows, **CHAIN)
    return noting.plans


def test_steps_leave_the_same(pair: tuple[Path, Path]) -> None:
    first, second = native(pair, **RESTING), native(pair, **RESTING)
    runs: deque[Run] = deque()
    for plan in some_steps(first):
        runs.append(second.stage(plan))
        if len(runs) > 1:
            runs.popleft()(lambda read: read())
    runs.popleft()(lambda read: read())
    for name in ("bonus", "lengths", "done", "seeds"):
        one, other = (getattr(worker.fallback.state.futures, name) for worker in (first, second))
        assert torch.equal(one, other), name
    for name in ("firsts", "tokens", "taps"):
        one, other = (getattr(worker.fallback.tails, name) for worker in (first, second))
        assert torch.equal(one[:-1], other[:-1]), name


def test_needs_are_those_of_the_owner_that_comes_last(pair: tuple[Path, Path]) -> None:
    """Two owners of a row in a row; the first one's step goes to the fallback, after the second one's was staged."""
    first, second = native(pair), native(pair)
    noting = Noting(first)
    rounds = Rounds(noting)
    rounds.add(0, [1, 2, 3], SamplingParams(temperature=0.9, logprobs=1, max_tokens=1))
    rounds.add(0, [4, 5], SamplingParams(temperature=0.0, max_tokens=1))
    for run in [second.stage(plan) for plan in noting.plans]:
        run(lambda read: None)
    assert not second.fallback.state.needs.of(np.zeros(1, np.int32)).noise


def test_a_native_worker_stages_and_its_fallback_does_not(pair: tuple[Path, Path]) -> None:
    made = native(pair)
    assert isinstance(made, StagingWorker) and not isinstance(made.fallback, StagingWorker)

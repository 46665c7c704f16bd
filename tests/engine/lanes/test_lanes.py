"""Both lanes carry the same steps; a lane whose process dies or fails says so at once, and none outlives its parent."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie.contracts.config import Config, parse_config
from aerie.contracts.errors import ConfigError, EngineDead
from aerie.contracts.sampling import SamplingParams, columns_of
from aerie.contracts.step import DecodeWork, Lane, Logprobs, RowStarts, StepKind, StepOutput, StepPlan
from aerie.engine.build import build_plain_worker
from aerie.engine.lanes.cpu import CpuLane
from aerie.engine.lanes.frames import decode, encode
from aerie.engine.lanes.inline import InlineLane
from tests.engine.echo import FAILING, SLOW, UNSAYABLE, EchoWorker
from tests.engine.rounds import Rounds
from tests.house import HOME
from tests.patience import end_of, quickest

ECHO = "tests.engine.echo:build_echo"


def plan(number: int, rows: int = 3) -> StepPlan:
    index = np.arange(rows, dtype=np.int32)
    work = DecodeWork(bounds=index + 5, nodes=index * 0 + 1, depth=0, topk=1)
    return StepPlan(number, StepKind.DECODE, index, index % 2, index > 0, None, work)


def same(left: Any, right: Any) -> bool:
    """Equality of contract dataclasses, arrays and their dtypes included."""
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and bool((left == right).all())
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    if dataclasses.is_dataclass(left):
        return type(left) is type(right) and all(
            same(getattr(left, field.name), getattr(right, field.name)) for field in dataclasses.fields(left)
        )
    return bool(left == right)


@pytest.fixture
def lane() -> Iterator[CpuLane]:
    made = CpuLane(ECHO, Config(), threads=1)
    yield made
    made.close()


def test_two_steps_in_flight_settle_in_order_as_in_place(lane: CpuLane) -> None:
    inline = InlineLane(EchoWorker(Config()))
    assert same(lane.capacity, inline.capacity)
    assert lane.capacity.report == inline.capacity.report
    for each in (lane, inline):
        each.launch(plan(1))
        each.launch(plan(2))
    for number in (1, 2):
        mine, theirs = lane.settle(), inline.settle()
        assert mine.number == number
        assert same(mine, theirs)


def test_frames_keep_every_field_and_dtype() -> None:
    count = np.array([1, 2], np.int32)
    output = StepOutput(
        number=3,
        token_ids=np.zeros((2, 0), np.int32),
        counts=count,
        accepted=count,
        drafted=count,
        lengths=count,
        endings=count,
        logprobs=Logprobs(np.ones((2, 1), np.float32), np.ones((2, 1, 0), np.int32), np.ones((2, 1, 0), np.float32)),
        busy_seconds=0.5,
    )
    starts = RowStarts(
        rows=count,
        noise_keys=count.astype(np.int64),
        sampling=columns_of([SamplingParams(temperature=0.7, top_k=3), SamplingParams(min_p=0.1)]),
        prompt_lengths=count,
        limits=count,
        min_lengths=count,
        stop_ids=np.full((2, 16), -1, np.int32),
    )
    for value in (output, plan(4), plan(5, rows=0), dataclasses.replace(plan(6), starts=starts)):
        assert same(decode(encode(value)), value)


@pytest.mark.parametrize("launched", [False, True])
def test_a_killed_process_is_reported_at_once(launched: bool) -> None:
    def killing() -> float:
        with contextlib.closing(CpuLane(ECHO, Config(), threads=1)) as lane:
            assert lane.pid is not None
            if launched:
                lane.launch(plan(SLOW))
            os.kill(lane.pid, signal.SIGKILL)
            began = time.monotonic()
            with pytest.raises(EngineDead, match="-9"):
                if not launched:
                    for number in range(3):  # the first frame may still fit the buffer of a pipe that nobody reads
                        lane.launch(plan(number))
                lane.settle()
            return time.monotonic() - began

    assert quickest(killing, 2) < 2


def test_a_step_that_fails_is_reported_with_its_reason(lane: CpuLane) -> None:
    lane.launch(plan(FAILING))
    with pytest.raises(EngineDead, match="a planted failure"):
        lane.settle()


def test_what_was_answered_comes_before_the_failure(lane: CpuLane) -> None:
    lane.launch(plan(1))
    lane.launch(plan(FAILING))
    assert lane.settle().number == 1
    with pytest.raises(EngineDead, match="a planted failure"):
        lane.settle()


def test_an_answer_that_cannot_be_sent_ends_the_process_with_its_reason(lane: CpuLane) -> None:
    lane.launch(plan(UNSAYABLE))
    with pytest.raises(EngineDead, match="the lane failed: ValueError"):
        lane.settle()


def test_ctrl_c_is_the_parents_to_handle(lane: CpuLane) -> None:
    assert lane.pid is not None
    os.kill(lane.pid, signal.SIGINT)
    lane.launch(plan(1))
    assert lane.settle().number == 1


def test_a_config_that_cannot_be_served_keeps_its_error() -> None:
    with pytest.raises(ConfigError, match="no worker for 'nowhere'") as caught:
        CpuLane("tests.engine.echo:build_nothing", parse_config({"model": {"path": "nowhere"}}), threads=1)
    assert caught.value.param == "model.path"


def test_the_process_ends_with_its_parent() -> None:
    script = (
        "import os, signal\n"
        "from aerie.contracts.config import Config\n"
        "from aerie.engine.lanes.cpu import CpuLane\n"
        "if __name__ == '__main__':\n"
        f"    lane = CpuLane({ECHO!r}, Config(), threads=1)\n"
        "    print(lane.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = HOME
    environment = os.environ | {"PYTHONPATH": str(root)}
    parent = subprocess.run(
        [sys.executable, "-c", script], cwd=root, env=environment, capture_output=True, check=False, timeout=120
    )
    end_of(int(parent.stdout))


def test_a_models_tokens_are_the_same_in_either_lane(models: Callable[[str], tuple[Path, Any]]) -> None:
    folder, _ = models("llama")
    config = parse_config({"model": {"path": str(folder), "dtype": "float32"}, "engine": {"kv_tokens": 1024}})
    worker = build_plain_worker(config)
    answers = []
    process = CpuLane("aerie.engine.build:build_plain_worker", config, threads=1)
    for lane in (InlineLane(worker), process):
        rounds = Rounds(Stepping(lane))
        rows = [
            rounds.add(0, [5, 6, 7], SamplingParams(temperature=0.9, seed=3, max_tokens=8)),
            rounds.add(1, [9] * 20, SamplingParams(temperature=0, max_tokens=8, logprobs=2), chunk=8),
        ]
        rounds.finish(rows)
        answers.append([row.out for row in rows])
    process.close()
    assert answers[0] == answers[1]


class Stepping:
    """A lane as a worker: launches and settles at once."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self.capacity = lane.capacity

    def step(self, plan: StepPlan, answer: Callable[[StepOutput], None]) -> None:
        self._lane.launch(plan)
        answer(self._lane.settle())

    def close(self) -> None:
        self._lane.close()

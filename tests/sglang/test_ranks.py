"""Tensor parallelism on two CPU ranks (gloo): the tokens of one rank, and a rank that dies takes all with it."""

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerie.contracts.errors import EngineDead
from aerie.contracts.sampling import SamplingParams
from tests.engine.rounds import Rounds
from tests.sglang.forked import fork_child, run_forked
from tests.sglang.models import sglang_config
from tests.spec.models import draft_maps, head_tensors, specforge_config, write, write_target

PROMPTS = ([3, 9, 14, 2, 33, 8, 5], [60, 41])
TREE = {"depth": 3, "topk": 2, "nodes": 8}


class OnLane:
    """A lane as the worker that `Rounds` drives."""

    def __init__(self, lane: Any) -> None:
        self._lane = lane
        self.capacity = lane.capacity

    def step(self, plan: Any, answer: Callable[[Any], None]) -> None:
        self._lane.launch(plan)
        answer(self._lane.settle())

    def close(self) -> None:
        self._lane.close()


def pair(folder: Path) -> tuple[Path, Path]:
    tensors = head_tensors(draft_vocabulary=32) | draft_maps(32)
    return write_target(folder / "target"), write(
        folder / "head", specforge_config((2, 4, 5), draft_vocabulary=32), tensors
    )


def with_lane(folder: Path, ranks: int, body: Callable[[Any], None]) -> None:
    """Runs `body` with the lane that a deployment of so many ranks gets; its processes are forks of this one."""
    from aerie.engine.lanes import cpu
    from aerie.lane import make_lane

    cpu.start_child = fork_child  # type: ignore[attr-defined]
    target, head = pair(folder)
    config = sglang_config(target, sglang={"tp": ranks}, spec={"head": str(head), **TREE}, engine={"threads": 1})
    lane = make_lane(config)
    try:
        body(lane)
    finally:
        lane.close()


def tokens(lane: Any) -> list[list[int]]:
    rounds = Rounds(OnLane(lane))
    samplings = (SamplingParams(temperature=0, max_tokens=12), SamplingParams(temperature=0.8, seed=4, max_tokens=12))
    rows = [
        rounds.add(index, list(prompt), sampling, drafting=True)
        for index, (prompt, sampling) in enumerate(zip(PROMPTS, samplings, strict=True))
    ]
    rounds.finish(rows, **TREE)
    return [row.out for row in rows]


def tokens_of(folder: Path, ranks: int, before: Callable[[], None] = lambda: None) -> list[list[int]]:
    """What a deployment of so many ranks gives, in a fork in which `before` ran first."""

    def body() -> None:
        before()
        with_lane(folder, ranks, lambda lane: (folder / "tokens").write_text(json.dumps(tokens(lane))) and None)

    run_forked(body)
    found: list[list[int]] = json.loads((folder / "tokens").read_text())
    return found


def err_on_rank_1() -> None:
    """Every choice of rank 1 is another token, and its paths end at the root."""
    from aerie.engine.sglang.place import mine
    from aerie.engine.step import passes
    from aerie.spec.round import acceptance

    choose, accept = passes.choose, acceptance.accept

    def choose_otherwise(*args: Any, **given: Any) -> Any:
        chosen = choose(*args, **given)
        return chosen if mine().rank == 0 else (chosen + 1) % 64

    def accept_nothing(*args: Any, **given: Any) -> Any:
        found = accept(*args, **given)
        if mine().rank == 0:
            return found
        return replace(found, counts=found.counts * 0, tokens=(found.tokens + 1) % 64)

    passes.choose, acceptance.accept = choose_otherwise, accept_nothing


def test_two_ranks_give_the_tokens_of_one(tmp_path: Path) -> None:
    """Also where rank 1 would choose otherwise: what rank 0 chose stands."""
    alone = tokens_of(tmp_path, 1)
    assert [len(out) for out in alone] == [12, 12]
    assert tokens_of(tmp_path, 2) == alone
    assert tokens_of(tmp_path, 2, err_on_rank_1) == alone


def test_ranks_that_disagree_are_ended(tmp_path: Path) -> None:
    """Were nothing broadcast: the outputs are compared besides."""

    def body() -> None:
        err_on_rank_1()
        from aerie.engine.sglang.target import SglangTarget

        SglangTarget.agree = lambda _self, values: values  # type: ignore[method-assign]

        def disagree(lane: Any) -> None:
            with pytest.raises(EngineDead, match="rank 1 disagrees with rank 0"):
                tokens(lane)

        with_lane(tmp_path, 2, disagree)

    run_forked(body)


def test_a_rank_that_dies_ends_all(tmp_path: Path) -> None:
    def body() -> None:
        def kill_one(lane: Any) -> None:
            rounds = Rounds(OnLane(lane))
            row = rounds.add(0, [3, 9, 14], SamplingParams(temperature=0, max_tokens=40), drafting=True)
            os.kill(lane.pids[1], signal.SIGKILL)
            began = time.monotonic()
            with pytest.raises(EngineDead, match="rank 1 of 2"):
                rounds.finish([row], **TREE)
            assert time.monotonic() - began < 20
            for pid in lane.pids:
                with pytest.raises(ProcessLookupError):
                    os.kill(pid, 0)

        with_lane(tmp_path, 2, kill_one)

    run_forked(body)

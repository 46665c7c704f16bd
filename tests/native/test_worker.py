"""Whole steps in one call, or in one for each phase: what they commit and leave behind is the fallback's own, bit for
bit.
"""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from aerie.contracts.config import parse_config
from aerie.contracts.sampling import SamplingParams
from aerie.contracts.step import Ending, StepOutput
from aerie.native.structs import plan
from aerie.native.worker import NativeWorker
from aerie.server.text.tokenizer import Tokenizer
from aerie.worker import build_worker
from tests.engine.rounds import Rounds, Row
from tests.house import HOME
from tests.native.cpp_here import needs_cpp
from tests.native.whole_steps import Pair, make_worker, write_pair
from tests.spec.test_worker import PROMPTS, SHAPES

pytestmark = needs_cpp
DEMO = HOME / "models/demo"
QUESTIONS = ("Count from 20 to 60 in steps of 2.", "Count from 20 to 60 in steps of 2.")
NOTHING = {"depth": 0, "topk": 1, "nodes": 1}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp("pair"))


def added(pair: Pair, temperatures: tuple[float, ...], drafting: bool = True, **changes: Any) -> list[list[Any]]:
    """Rows of both workers."""

    def add(rounds: Any) -> list[Any]:
        rows = []
        for index, temperature in enumerate(temperatures):
            params = SamplingParams(**({"temperature": temperature, "seed": index, "max_tokens": 24} | changes))
            rows.append(rounds.add(index, list(PROMPTS[index]), params, drafting=drafting))
        return rows

    return pair.each(add)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("temperatures", [(0.0,), (0.0, 0.9, 1.3)])
@pytest.mark.parametrize("shape", SHAPES)
def test_steps_that_draft_leave_the_same(
    pair: tuple[Path, Path],
    shape: str,
    temperatures: tuple[float, ...],
    dtype: str,
) -> None:
    both = Pair(lambda: make_worker(pair, dtype, confidence_threshold=0.02, edge_temperatures=(1.0, 0.8)))
    rows = added(both, temperatures)
    while places := [place for place, row in enumerate(rows[0]) if not row.done]:
        both.decode([[own[place] for place in places] for own in rows], **SHAPES[shape])
    assert all(len(row.out) == 24 for own in rows for row in own)


def test_rows_that_leave_the_draft_at_once_leave_the_same(pair: tuple[Path, Path]) -> None:
    """The head is sure of no node: nothing but roots is verified in a step that drafts."""
    both = Pair(lambda: make_worker(pair, "float32", confidence_threshold=0.999))
    rows, drafted = added(both, (0.0, 0.9)), 0
    while places := [place for place, row in enumerate(rows[0]) if not row.done]:
        output = both.decode([[own[place] for place in places] for own in rows], **SHAPES["chain"])
        drafted += int(output.drafted.sum())
    assert not drafted and all(len(row.out) == 24 for own in rows for row in own)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_long_accepted_runs_leave_the_same(shape: str, temperature: float) -> None:
    """Of a head that was trained, on the shipped pair."""
    both = Pair(lambda: make_worker((DEMO / "target", DEMO / "head"), "bfloat16", confidence_threshold=0.1))
    with closing(Tokenizer(DEMO / "target")) as tokenizer:
        prompts = [tokenizer.chat_ids([{"role": "user", "content": question}], {}) for question in QUESTIONS]
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=48)
    rows = both.each(lambda rounds: [rounds.add(i, ids, params, drafting=True) for i, ids in enumerate(prompts)])
    accepted: list[int] = []
    while places := [place for place, row in enumerate(rows[0]) if not row.done]:
        output = both.decode([[own[place] for place in places] for own in rows], **SHAPES[shape])
        accepted += output.accepted.tolist()
    assert max(accepted) >= 2 and sum(accepted) >= 8


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_plain_steps_leave_the_same(pair: tuple[Path, Path], temperature: float, dtype: str) -> None:
    both = Pair(lambda: make_worker(pair, dtype))
    rows = added(both, (temperature, 0.0, 0.7), drafting=False, max_tokens=9)
    for _ in range(8):
        both.decode(rows, **NOTHING)
    assert all(row.done and len(row.out) == 9 for own in rows for row in own)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("extended", [(True, True, True), (False, True, False), (False, False, False)])
def test_chunks_of_prompts_leave_the_same(
    pair: tuple[Path, Path], extended: tuple[bool, ...], temperature: float, dtype: str
) -> None:
    """Rows that begin, go on and end in one step; then all decode from what that left."""
    both = Pair(lambda: make_worker(pair, dtype))
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=5)
    prompts = [list(range(3, 3 + size)) for size in (4, 23, 9)]
    rows = both.each(lambda _: [Row(i, prompts[i], params, extended[i]) for i in range(3)])
    both.read([own[:2] for own in rows], [4, 7])
    both.read([[own[1], own[2]] for own in rows], [10, 5])
    both.read([[own[2], own[1]] for own in rows], [4, 1])
    both.read([[own[1]] for own in rows], [5])
    assert [len(row.out) for row in rows[1]] == [1, 1, 1]
    for own in range(3):
        both.decode([[each[own]] for each in rows], **(SHAPES["chain"] if extended[own] else NOTHING))


def test_an_answer_of_one_token_ends_with_its_prompt(pair: tuple[Path, Path]) -> None:
    both = Pair(lambda: make_worker(pair, "bfloat16"))
    params = SamplingParams(temperature=0.0, max_tokens=1)
    rows = both.each(lambda _: [Row(0, [5, 6, 7], params, True)])
    output = both.read(rows, [3])
    assert output.endings[0] == Ending.LENGTH and rows[1][0].done


@pytest.mark.parametrize("shape", ["plain", "chain", "tree"])
def test_rows_end_at_every_place(pair: tuple[Path, Path], shape: str) -> None:
    drafts = shape != "plain"
    both = Pair(lambda: make_worker(pair, "bfloat16"))
    undisturbed = added(both, (0.0,), drafting=drafts)
    for rounds, own in zip(both.rounds, undisturbed, strict=True):
        rounds.finish(own, **(SHAPES[shape] if drafts else NOTHING))
    tokens = undisturbed[0][0].out
    for place in range(1, 9):
        for changes in ({"max_tokens": place + 1}, {"stop_token_ids": (tokens[place],)}):
            again = Pair(lambda: make_worker(pair, "bfloat16"))
            rows = added(again, (0.0, 0.0), drafting=drafts, **changes)
            while not rows[0][0].done:
                again.decode(rows, **(SHAPES[shape] if drafts else NOTHING))
            assert rows[1][0].out == tokens[: tokens.index(tokens[place]) + 1 if "stop" in str(changes) else place + 1]


@pytest.mark.parametrize("shape", ["plain", "chain"])
def test_rows_that_had_ended_change_nothing(pair: tuple[Path, Path], shape: str) -> None:
    given = NOTHING if shape == "plain" else SHAPES[shape]
    both = Pair(lambda: make_worker(pair, "bfloat16"))
    short = added(both, (0.0,), drafting=shape != "plain", max_tokens=2)
    for rounds, own in zip(both.rounds, short, strict=True):
        rounds.finish(own, **given)

    def step(rounds: Any) -> StepOutput:
        return rounds.decode(short[both.rounds.index(rounds)], **given)

    piecewise, whole = both.each(step)
    for output in (piecewise, whole):
        assert (output.counts[0], output.drafted[0], output.accepted[0], output.endings[0]) == (0, 0, 0, 0)
        assert output.lengths[0] == short[0][0].length and output.token_ids.shape == (1, given["depth"] + 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("changes", [{"norm_output": True}, {"fc_norm": True}, {"norm_before_residual": True}])
def test_heads_of_other_kinds(tmp_path: Path, changes: dict[str, bool], dtype: str) -> None:
    extra = {f"fc_norm.{tap}.weight": (32,) for tap in range(3)} if "fc_norm" in changes else None
    own = write_pair(tmp_path, extra=extra, **changes)
    both = Pair(lambda: make_worker(own, dtype))
    rows = added(both, (0.0, 0.8))
    for shape in ("chain", "tree", "chain"):
        both.decode(rows, **SHAPES[shape])


@pytest.mark.parametrize("shape", ["plain", "chain"])
@pytest.mark.parametrize("changes", [{"top_p": 0.6}, {"top_k": 3, "min_p": 0.02}, {"min_tokens": 12}])
def test_filters_and_bans_leave_the_same(pair: tuple[Path, Path], shape: str, changes: dict[str, Any]) -> None:
    """A stop id that would come early is banned for a while."""
    drafts = shape != "plain"
    both = Pair(lambda: make_worker(pair, "bfloat16"))
    rows = added(both, (0.0, 0.9, 1.3), drafting=drafts, stop_token_ids=(18, 26, 37, 5), **changes)
    while places := [place for place, row in enumerate(rows[0]) if not row.done]:
        both.decode([[own[place] for place in places] for own in rows], **(SHAPES[shape] if drafts else NOTHING))
    if "min_tokens" in changes:
        assert all(len(row.out) > 12 or row.out[-1] in (18, 26, 37, 5) for row in rows[1])
        assert all(not {18, 26, 37, 5} & set(row.out[:12]) for row in rows[1])


WHYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "log probabilities": ({}, {"logprobs": 2}),
    "noise in drafts": ({"draft_temperature": 1.0}, {"temperature": 0.9}),
    "simulated acceptance": ({"simulate_acceptance": 2.0}, {}),
}


def watched(monkeypatch: pytest.MonkeyPatch, both: Pair) -> list[int]:
    """Grows with each step that goes to the fallback."""
    called: list[int] = []
    run = both.workers[1].run
    monkeypatch.setattr(both.workers[1], "run", lambda *given: (called.append(1), run(*given))[1])
    return called


@pytest.mark.parametrize("why", WHYS)
def test_what_one_call_cannot_do_goes_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[Path, Path], why: str
) -> None:
    spec, sampling = WHYS[why]
    both = Pair(lambda: make_worker(pair, "bfloat16", **spec))
    rows = added(both, (0.0,), **({"temperature": 0.0} | sampling))
    called = watched(monkeypatch, both)
    both.decode(rows, only=False, **SHAPES["chain"])
    assert len(called) == 1


def test_trees_of_filtered_rows_are_drafted_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[Path, Path]
) -> None:
    both = Pair(lambda: make_worker(pair, "bfloat16"))
    rows = added(both, (0.9,), top_p=0.5)
    called = watched(monkeypatch, both)
    both.decode(rows, only=False, **SHAPES["tree"])
    assert len(called) == 1


def test_columns_that_the_kernels_do_not_read_are_for_the_fallback(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[Path, Path]
) -> None:
    monkeypatch.setattr(plan, "needs_beyond", lambda: ("filters",))
    both = Pair(lambda: make_worker(pair, "bfloat16"))
    rows = added(both, (0.9, 0.9), drafting=False, top_p=0.5)
    called = watched(monkeypatch, both)
    both.decode(rows, only=False, **NOTHING)
    assert len(called) == 1


def test_a_plain_row_sends_a_step_of_trees_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[Path, Path]
) -> None:
    both = Pair(lambda: make_worker(pair, "bfloat16"))
    rows = added(both, (0.0, 0.0))
    for own in rows:
        own[1].drafting = False
    called = watched(monkeypatch, both)
    both.each(lambda rounds: rounds.decode(rows[both.rounds.index(rounds)], **SHAPES["tree"]))
    assert len(called) == 1


def test_more_tokens_than_one_call_passes(monkeypatch: pytest.MonkeyPatch, pair: tuple[Path, Path]) -> None:
    both = Pair(lambda: make_worker(pair, "bfloat16"))
    rows = added(both, (0.0, 0.0))
    both.decode(rows, **SHAPES["chain"])
    both.native.plans.most = 9
    called = watched(monkeypatch, both)
    both.decode(rows, only=False, **SHAPES["chain"])  # ten nodes
    assert len(called) == 1


def test_power_what_is_left_in_the_heads_pool_is_seen(pair: tuple[Path, Path]) -> None:
    both = Pair(lambda: make_worker(pair, "bfloat16"))
    rows = added(both, (0.0,))
    both.decode(rows, **SHAPES["tree"])
    worker = both.workers[1]
    worker.drafter.head.pool.keys[:, worker.state.tables.slots(torch.tensor([0]), torch.tensor([2]))] += 1
    with pytest.raises(AssertionError):
        both.decode(rows, **SHAPES["tree"])


def test_workers_of_one_process_have_kernels_of_their_own(pair: tuple[Path, Path]) -> None:
    """One built after the other, stepped in turns: neither changes what the other runs, and the texts are the same."""
    target, head = pair
    given = {"model": {"path": str(target), "dtype": "float32"}, "spec": {"head": str(head)}}
    engines = ({"kv_tokens": 1024, "kernels": language} for language in ("cpp", "torch", "cpp"))
    workers = [build_worker(parse_config(given | {"engine": engine})) for engine in engines]
    assert [isinstance(worker, NativeWorker) for worker in workers] == [True, False, True]
    reports = [str(worker.capacity.report["kernels"]) for worker in workers]
    assert reports[0] == reports[2] and reports[0].startswith("cpp: ") and reports[1] == "none"
    rounds = [Rounds(worker) for worker in workers]
    params = SamplingParams(temperature=0.9, seed=4, max_tokens=12)
    rows = [each.add(0, list(PROMPTS[0]), params, drafting=True) for each in rounds]
    while not rows[0].done:
        for each, row in zip(rounds, rows, strict=True):
            if not row.done:
                each.decode([row], **SHAPES["chain"])
    for each, row in zip(rounds, rows, strict=True):
        each.finish([row], **SHAPES["chain"])
    assert rows[0].out == rows[1].out == rows[2].out and len(rows[0].out) == 12

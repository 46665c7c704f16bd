"""The speculative worker against the plain one: the same tokens, and pools that equal a fresh pass over what was
committed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aerie.contracts.sampling import SamplingParams
from aerie.contracts.step import Ending, StepOutput, StepPlan
from aerie.spec.round.round import Round
from aerie.spec.worker import SpecWorker
from tests.engine.rounds import Rounds, Row
from tests.spec import models
from tests.spec.conftest import MakeWorker
from tests.spec.toys import Prophet, toy_worker

Prompts = Sequence[Sequence[int]]
PROMPTS: Prompts = ([1, 2, 3, 4, 5, 6, 7], [9, 8], list(range(20, 43)), [60])
SHAPES: dict[str, dict[str, int]] = {
    "chain": {"depth": 4, "topk": 1, "nodes": 5},
    "short chain": {"depth": 5, "topk": 1, "nodes": 3},
    "tree": {"depth": 4, "topk": 4, "nodes": 13},
    "wide": {"depth": 1, "topk": 4, "nodes": 5},
    "full tree": {"depth": 6, "topk": 4, "nodes": 32},
}

_PLAIN: dict[tuple[int, SamplingParams], list[int]] = {}


def sampling(row: int, temperature: float, **changes: Any) -> SamplingParams:
    """Rows with different filters, so that a batch mixes them."""
    filters: dict[str, Any] = ({}, {"top_p": 0.8}, {"top_k": 5, "min_p": 0.05}, {"top_k": 1})[row % 4]
    return SamplingParams(**({"temperature": temperature, "seed": row + 1, "max_tokens": 16} | filters | changes))


def run(
    worker: Any, params: list[SamplingParams], *, drafting: Sequence[bool], chunk: int = 256, **shape: int
) -> list[Row]:
    rounds = Rounds(worker, end_ids=worker.capacity.end_ids)
    rows = [
        rounds.add(index, list(PROMPTS[index]), own, chunk=chunk, drafting=drafting[index])
        for index, own in enumerate(params)
    ]
    rounds.finish([row for row in rows if not row.done], **shape)
    return rows


def plain_tokens(make_worker: MakeWorker, params: list[SamplingParams]) -> list[list[int]]:
    """What plain decoding gives each row; it does not depend on the batch, so a row is decoded once for all tests."""
    wanted = [(index, own) for index, own in enumerate(params)]
    if missing := [key for key in wanted if key not in _PLAIN]:
        rounds = Rounds(make_worker("none"))
        rows = [rounds.add(index, list(PROMPTS[index]), own) for index, own in missing]
        rounds.finish([row for row in rows if not row.done])
        _PLAIN.update({key: row.out for key, row in zip(missing, rows, strict=True)})
    return [_PLAIN[key] for key in wanted]


def test_a_step_answers_before_the_head_follows(make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make_worker()
    rounds = Rounds(worker, end_ids=worker.capacity.end_ids)
    reported: list[str] = []
    forward = worker.drafter.head.forward

    def watched(*given: Any) -> Tensor:
        reported.append("head")
        return forward(*given)

    def step(plan: StepPlan, answer: Callable[[StepOutput], None]) -> None:
        def noted(output: StepOutput) -> None:
            reported.append("answer")
            answer(output)

        type(worker).step(worker, plan, noted)

    monkeypatch.setattr(worker.drafter.head, "forward", watched)
    monkeypatch.setattr(worker, "step", step)
    row = rounds.add(0, list(PROMPTS[0]), sampling(0, 0.0), drafting=True)
    assert reported == ["answer", "head"]
    reported.clear()
    rounds.decode([row], depth=2, topk=1, nodes=3)
    assert reported == ["head", "answer", "head"]


def test_a_step_whose_rows_have_all_ended_commits_and_drafts_nothing(make_worker: MakeWorker) -> None:
    rounds = Rounds(make_worker())
    row = rounds.add(0, list(PROMPTS[0]), sampling(0, 0.0), drafting=True)
    rounds.finish([row], **SHAPES["chain"])
    output = rounds.decode([row], **SHAPES["chain"])
    assert (output.counts[0], output.drafted[0], output.accepted[0]) == (0, 0, 0)
    assert output.token_ids.shape == (1, SHAPES["chain"]["depth"] + 1)


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.2])
@pytest.mark.parametrize(("shape", "page_size"), list(zip(SHAPES, (4, 16, 1, 4, 3), strict=True)))
def test_tokens_equal_those_of_plain_decoding(
    make_worker: MakeWorker, shape: str, temperature: float, page_size: int
) -> None:
    params = [sampling(row, temperature) for row in range(4)]
    for drafting, chunk, slack in (([True] * 4, 256, 0), ([True, False, True, True], 5, 7)):
        rows = run(
            make_worker(page_size=page_size), params, drafting=drafting, chunk=chunk, slack=slack, **SHAPES[shape]
        )
        assert [row.out for row in rows] == plain_tokens(make_worker, params)


def test_greedy_and_sampled_rows_share_a_step(make_worker: MakeWorker) -> None:
    params = [sampling(row, temperature) for row, temperature in enumerate((0.0, 1.1, 0.0, 0.7))]
    for shape in SHAPES.values():
        rows = run(make_worker(), params, drafting=[True] * 4, **shape)
        assert [row.out for row in rows] == plain_tokens(make_worker, params)


@pytest.mark.parametrize("fault", ["garbage", "one word", "infinite trust"])
def test_a_hostile_head_changes_speed_only(make_worker: MakeWorker, tmp_path: Path, fault: str) -> None:
    tensors = models.head_tensors(seed=99)
    if fault == "one word":
        tensors["lm_head.weight"].zero_()
    if fault == "garbage":
        tensors["lm_head.weight"] *= -50
    folder = models.write(tmp_path, models.specforge_config(), tensors)
    spec = {"draft_temperature": float("inf")} if fault == "infinite trust" else {}
    for temperature in (0.0, 1.0):
        params = [sampling(row, temperature) for row in range(4)]
        rows = run(make_worker(folder, **spec), params, drafting=[True] * 4, **SHAPES["tree"])
        assert [row.out for row in rows] == plain_tokens(make_worker, params)


@settings(max_examples=12)
@given(data=st.data())
def test_any_mix_of_rows_shapes_and_chunks(make_worker: MakeWorker, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 4))
    temperatures = data.draw(st.lists(st.sampled_from([0.0, 0.6, 1.0, 1.5]), min_size=count, max_size=count))
    drafting = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    params = [
        sampling(row, temperature, max_tokens=data.draw(st.integers(1, 20)))
        for row, temperature in enumerate(temperatures)
    ]
    worker = make_worker(page_size=data.draw(st.sampled_from([1, 3, 16])))
    rounds = Rounds(worker)
    rows = [
        rounds.add(i, list(PROMPTS[i]), own, chunk=data.draw(st.integers(1, 9)), drafting=drafting[i])
        for i, own in enumerate(params)
    ]
    while open_rows := [row for row in rows if not row.done]:
        some = data.draw(st.lists(st.sampled_from(open_rows), min_size=1, unique_by=id))
        shape = data.draw(st.sampled_from([*SHAPES.values(), {"depth": 0, "topk": 1, "nodes": 1}]))
        rounds.decode(some, **shape, slack=data.draw(st.integers(0, 9)))
    assert [row.out for row in rows] == plain_tokens(make_worker, params)


def test_rows_turn_plain_in_the_middle(make_worker: MakeWorker) -> None:
    params = [sampling(row, 0.9) for row in range(3)]
    rounds = Rounds(make_worker())
    rows = [rounds.add(i, list(PROMPTS[i]), own, drafting=True) for i, own in enumerate(params)]
    rounds.decode(rows, **SHAPES["tree"])
    rows[1].drafting = False
    rounds.finish([row for row in rows if not row.done], **SHAPES["tree"])
    assert [row.out for row in rows] == plain_tokens(make_worker, params)


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_logprobs_are_those_of_plain_decoding(make_worker: MakeWorker, shape: str) -> None:
    params = [sampling(row, 1.0, logprobs=2) for row in range(3)]
    plain = run(make_worker("none"), params, drafting=[False] * 3)
    rows = run(make_worker(), params, drafting=[True, True, False], **SHAPES[shape])
    for row, other in zip(rows, plain, strict=True):
        np.testing.assert_allclose(row.logprobs, other.logprobs, rtol=1e-4, atol=1e-4)


def test_the_output_says_what_was_drafted_and_accepted(make_worker: MakeWorker) -> None:
    rounds = Rounds(make_worker())
    rows = [rounds.add(i, list(PROMPTS[i]), sampling(i, 0.0, max_tokens=60), drafting=i != 2) for i in range(3)]
    for _ in range(8):
        before = [row.length for row in rows]
        output = rounds.decode(rows, depth=4, topk=4, nodes=9)
        assert output.token_ids.shape == (3, 5)
        assert output.drafted.tolist() == [8, 8, 0]
        assert (output.counts == output.accepted + 1).all()
        assert output.lengths.tolist() == [b + c for b, c in zip(before, output.counts.tolist(), strict=True)]
        assert set(output.phase_seconds) - {"extend"} == {"draft", "verify", "accept"}
    assert "extend" in output.phase_seconds, "the head follows after the answer; that is told with the next one"
    plain = rounds.decode(rows, depth=0)
    assert set(plain.phase_seconds) == {"verify", "extend"} and plain.token_ids.shape == (3, 1)


def pools_after(worker: SpecWorker, row: Row, tokens: list[int]) -> tuple[Tensor, Tensor]:
    """Keys of target and head at the row's positions."""
    state, head = worker.state, worker.drafter.head
    slots = state.tables.slots(torch.full((len(tokens),), row.index), torch.arange(len(tokens)))
    return state.target.pool.keys[:, slots], head.pool.keys[:, slots]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_pools_equal_a_fresh_pass_over_the_committed_tokens(
    make_worker: MakeWorker, shape: str, temperature: float
) -> None:
    worker = make_worker(page_size=4)
    assert isinstance(worker, SpecWorker)
    rounds = Rounds(worker)
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=200)
    rows = [rounds.add(i, list(PROMPTS[i]), params, drafting=True, chunk=4) for i in range(3)]
    for _ in range(7):
        rounds.decode(rows, **SHAPES[shape], slack=3)
    for row in rows:
        committed = [*row.prompt, *row.out]
        assert len(committed) == row.length + 1
        fresh = make_worker(page_size=16)
        assert isinstance(fresh, SpecWorker)
        # A prompt whose next token is what the row sampled: its last pair needs that token, so it comes one later.
        again = Rounds(fresh).add(0, committed, params, drafting=True)
        for got, expected in zip(
            pools_after(worker, row, committed[:-1]), pools_after(fresh, again, committed[:-1]), strict=True
        ):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_slots_that_no_row_owns_may_hold_anything_finite(make_worker: MakeWorker, shape: str) -> None:
    params = [sampling(row, 0.8) for row in range(3)]
    worker = make_worker(page_size=4)
    assert isinstance(worker, SpecWorker)
    for pool in (worker.state.target.pool, worker.drafter.head.pool):
        pool.keys.uniform_(-1e4, 1e4)
        pool.values.uniform_(-1e4, 1e4)
    rows = run(worker, params, drafting=[True] * 3, slack=9, **SHAPES[shape])
    assert [row.out for row in rows] == plain_tokens(make_worker, params)


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_a_done_row_writes_nothing_and_commits_nothing(make_worker: MakeWorker, shape: str) -> None:
    worker = make_worker(page_size=4)
    assert isinstance(worker, SpecWorker)
    rounds = Rounds(worker)
    params = [sampling(0, 0.7, max_tokens=3), sampling(1, 0.7, max_tokens=60)]
    rows = [rounds.add(i, list(PROMPTS[i]), own, drafting=True) for i, own in enumerate(params)]
    while not rows[0].done:
        rounds.decode(rows, **SHAPES[shape])
    pools = (worker.state.target.pool, worker.drafter.head.pool)
    slots = worker.state.tables.slots(torch.zeros(40, dtype=torch.int64), torch.arange(40))
    before = [pool.keys[:, slots].clone() for pool in pools]
    out = list(rows[0].out)
    output = rounds.decode(rows, **SHAPES[shape])
    assert output.counts[0] == 0 and output.drafted[0] == 0 and output.endings[0] == Ending.OPEN
    assert output.counts[1] > 0 and rows[0].out == out
    for pool, kept in zip(pools, before, strict=True):
        assert torch.equal(pool.keys[:, slots], kept)


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_an_end_at_every_offset_inside_a_run(make_worker: MakeWorker, shape: str) -> None:
    """Stop ids and limits cut a row where plain decoding does, wherever in an accepted run they fall."""
    table = torch.eye(64).roll(1, 1) * 9  # the token after t is t + 1
    text = list(range(1, 40))

    def make() -> SpecWorker:
        worker = toy_worker(table, Prophet(text, 64), rows=2)
        assert isinstance(worker, SpecWorker)
        return worker

    last = set()
    for end in range(1, 14):
        for own in (
            SamplingParams(temperature=0.0, max_tokens=end),
            SamplingParams(temperature=0.0, max_tokens=20, stop_token_ids=(1 + end,)),
            SamplingParams(temperature=0.0, max_tokens=end, stop_token_ids=(1 + end,)),
        ):
            rounds = Rounds(make())
            row = rounds.add(0, [1], own, drafting=True)
            while not row.done:
                output = rounds.decode([row], **SHAPES[shape])
                assert 1 <= output.counts[0] <= output.accepted[0] + 1
                ending = int(output.endings[0])
            assert row.out == text[1 : end + 1]
            assert row.length == len(row.prompt) + end - 1  # the last token is not run
            if end > 1:
                assert ending == (Ending.STOP_ID if own.stop_token_ids else Ending.LENGTH)
                last.add(int(output.counts[0]))
    assert last == set(range(1, SHAPES[shape]["depth"] + 2))


def test_a_head_with_fewer_ids_than_children_wanted() -> None:
    worker = toy_worker(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), Prophet([1, 0] * 20, 2), rows=1)
    rounds = Rounds(worker)
    row = rounds.add(0, [1], SamplingParams(temperature=0.0, max_tokens=12), drafting=True)
    output = rounds.decode([row], depth=2, topk=4, nodes=20)
    assert output.drafted.tolist() == [6]  # two children of the root and of each of them
    rounds.finish([row], depth=2, topk=4, nodes=20)
    assert row.out == [0, 1] * 6


def test_min_tokens_bans_stop_ids_inside_a_run(make_worker: MakeWorker) -> None:
    free = run(make_worker("none"), [sampling(0, 1.0)], drafting=[False])[0].out
    own = [sampling(0, 1.0, stop_token_ids=(free[2],), min_tokens=9)]
    expected = plain_tokens(make_worker, own)
    assert len(expected[0]) >= 9
    for shape in SHAPES.values():
        assert [row.out for row in run(make_worker(), own, drafting=[True], **shape)] == expected


def break_compaction(monkeypatch: pytest.MonkeyPatch) -> None:

    from aerie.spec.round import round

    right = round.compact
    monkeypatch.setattr(round, "compact", lambda *given: right(*given[:-1], (given[-1] - 1).clamp(min=0)))


def test_power_a_compaction_off_by_one_changes_tokens(make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    params = [sampling(row, 1.0, max_tokens=60) for row in range(4)]
    expected = plain_tokens(make_worker, params)
    break_compaction(monkeypatch)
    rows = run(make_worker(), params, drafting=[True] * 4, **SHAPES["full tree"])
    assert [row.out for row in rows] != expected


def test_power_a_skipped_extend_keeps_the_text_and_spoils_the_heads_pool(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:

    params = SamplingParams(temperature=0.0, max_tokens=200)

    def heads_pool() -> tuple[list[int], Tensor]:
        worker = make_worker()
        assert isinstance(worker, SpecWorker)
        rounds = Rounds(worker)
        row = rounds.add(0, list(PROMPTS[0]), params, drafting=True)
        while row.length < 40:
            rounds.decode([row], **SHAPES["chain"])
        return row.out[:30], pools_after(worker, row, [*row.prompt, *row.out][:37])[1]

    tokens, right = heads_pool()
    monkeypatch.setattr(Round, "extend", lambda self, opened, verified, outcome: opened.roots.seeds.clone())
    same_tokens, wrong = heads_pool()
    assert same_tokens == tokens
    assert not torch.allclose(right, wrong, atol=1e-3)


def test_a_step_in_which_nothing_drafts_is_the_plain_pass(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker()
    assert isinstance(worker, SpecWorker)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the head was called")

    monkeypatch.setattr(type(worker.drafter.head), "forward", never)
    params = [sampling(row, 0.8) for row in range(3)]
    rows = run(worker, params, drafting=[False] * 3, **SHAPES["tree"])
    assert [row.out for row in rows] == plain_tokens(make_worker, params)

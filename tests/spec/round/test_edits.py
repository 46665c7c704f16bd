"""Texts with penalties, biases and bans: those of a recount in NumPy, token by token, whatever drafts.

The oracle runs the whole text through `transformers` for every token and counts again from the text.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from aerie.contracts.sampling import SamplingParams, noise_key
from aerie.engine.sampling.noise import gumbel
from aerie.engine.state.edit_tables import EditTables
from tests.engine.rounds import Rounds, Row
from tests.native.cpp_here import needs_cpp
from tests.native.whole_steps import Pair, write_pair
from tests.native.whole_steps import make_worker as make_native_worker
from tests.recount import recounted
from tests.spec.conftest import MakeWorker
from tests.spec.test_worker import PROMPTS, SHAPES, run
from tests.spec.toys import Prophet, toy_worker

EDITED: list[dict[str, Any]] = [
    {"repetition_penalty": 1.4, "frequency_penalty": 0.6, "logit_bias": {5: 2.0, 61: -4.0}},
    {"presence_penalty": 1.1, "allowed_token_ids": (1, 3, 5, 7, 9, 11, 31, 33)},
    {},
    {"frequency_penalty": -0.9, "presence_penalty": -0.4, "banned_token_ids": (60, 2), "repetition_penalty": 0.8},
]
"""One row each: some repeat themselves, one is not edited."""
TOKENS = 20


def params(temperature: float) -> list[SamplingParams]:
    return [
        SamplingParams(temperature=temperature, seed=row, max_tokens=TOKENS, **own) for row, own in enumerate(EDITED)
    ]


@pytest.fixture(scope="module")
def expected(target_folder: Path) -> dict[float, list[list[int]]]:
    return {
        temperature: [text(target_folder, *one) for one in zip(PROMPTS, params(temperature), strict=True)]
        for temperature in (0.0, 0.8)
    }


@torch.inference_mode()
def text(folder: Path, prompt: Sequence[int], own: SamplingParams) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    answer: list[int] = []
    key = torch.tensor([noise_key(own.seed, list(prompt), 0)])
    while len(answer) < TOKENS:
        logits = model(torch.tensor([[*prompt, *answer]])).logits[0, -1].numpy()
        made = recounted(logits, prompt, answer, own)
        if own.temperature:
            position = torch.tensor([len(prompt) + len(answer)])
            made = made / np.float32(own.temperature) + gumbel(key, position, torch.arange(made.size))[0].numpy()
        answer.append(int(made.argmax()))
    return answer


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("head", ["plain", "eagle3", "peagle"])
def test_texts_are_those_of_a_recount(
    make_worker: MakeWorker, peagle_folder: Path, expected: Any, head: str, temperature: float
) -> None:
    folder = {"plain": "none", "eagle3": None, "peagle": peagle_folder}[head]
    shapes = {"plain": {"depth": 0, "topk": 1, "nodes": 1}} if head == "plain" else SHAPES
    accepted = 0
    for shape in shapes.values():
        rows = run(make_worker(folder), params(temperature), drafting=[head != "plain"] * 4, chunk=5, **shape)
        assert [row.out for row in rows] == expected[temperature]
        accepted += sum(sum(row.accepted) for row in rows)
    assert (accepted > 0) == (head != "plain")


FEW = 12
"""Tokens of a target whose text repeats them within a run."""


def known_text(table: torch.Tensor, prompt: list[int], own: SamplingParams) -> list[int]:
    """Of a target whose logits depend on the last token alone."""
    answer: list[int] = []
    while len(answer) < own.max_tokens:
        answer.append(int(recounted(table[[*prompt, *answer][-1]].numpy(), prompt, answer, own).argmax()))
    return answer


def drafted_text(shape: str, seed: int, own: SamplingParams) -> tuple[list[int], list[int], int]:
    """The text of a head that knows it, the text to expect, and the decode steps that it took."""
    table = 3 * torch.randn(FEW, FEW, generator=torch.Generator().manual_seed(seed))
    expected = known_text(table, [1, 4], own)
    rounds = Rounds(toy_worker(table, Prophet([1, 4, *expected], FEW), rows=1))
    row = rounds.add(0, [1, 4], own, drafting=True)
    rounds.finish([row], **SHAPES[shape])
    return row.out, expected, len(row.accepted) - 1


@pytest.mark.parametrize("shape", ["chain", "full tree"])
@settings(max_examples=15)
@given(
    seed=st.integers(0, 10**6),
    repetition=st.sampled_from([1.0, 0.6, 1.9]),
    frequency=st.floats(-2, 2, width=32),
    presence=st.floats(-2, 2, width=32),
)
def test_runs_that_repeat_tokens_are_accepted_whole(
    shape: str, seed: int, repetition: float, frequency: float, presence: float
) -> None:
    own = SamplingParams(
        temperature=0.0,
        max_tokens=30,
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
    )
    found, expected, steps = drafted_text(shape, seed, own)
    assert found == expected
    assert steps == -(-29 // (SHAPES[shape]["depth"] + 1)), "each step commits its whole draft and the bonus"


@pytest.mark.parametrize("shape", ["chain", "full tree"])
def test_a_count_that_ignores_what_is_drafted_changes_texts(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: counts of the round's start for every node."""
    monkeypatch.setattr("aerie.spec.round.verify._paths", lambda *_: None)
    own = SamplingParams(temperature=0.0, max_tokens=30, frequency_penalty=1.5)
    texts = [drafted_text(shape, seed, own)[:2] for seed in range(4)]
    assert all(found != expected for found, expected in texts)


def test_a_count_that_misses_what_is_committed_changes_texts(
    make_worker: MakeWorker, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EditTables, "count", lambda *_: None)
    rows = run(make_worker(), params(0.0), drafting=[True] * 4, **SHAPES["chain"])
    assert [row.out for row in rows] != expected[0.0]


def test_rows_alone_and_mixed_have_one_text(make_worker: MakeWorker, expected: Any) -> None:
    worker = make_worker()
    rounds = Rounds(worker, end_ids=worker.capacity.end_ids)
    for index in (3, 0):  # the second takes over a row and its slot
        row = rounds.add(3, list(PROMPTS[index]), params(0.8)[index], drafting=True)
        rounds.finish([row], **SHAPES["tree"])
        assert row.out == expected[0.8][index]


@needs_cpp
@pytest.mark.parametrize("shape", ["plain", *SHAPES])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_whole_steps_in_cpp_take_rows_that_edit(tmp_path: Path, shape: str, temperature: float) -> None:
    """They leave what the fallback leaves, counts too, and need not fall back."""
    pair = write_pair(tmp_path)
    both = Pair(lambda: make_native_worker(pair, "float32"))
    chosen = {"depth": 0, "topk": 1, "nodes": 1} if shape == "plain" else SHAPES[shape]

    def add(rounds: Any) -> list[Row]:
        return [
            rounds.add(row, list(PROMPTS[row]), own, drafting=shape != "plain")
            for row, own in enumerate(params(temperature))
        ]

    rows = both.each(add)
    while places := [place for place, row in enumerate(rows[0]) if not row.done]:
        both.decode([[own[place] for place in places] for own in rows], **chosen)
    counts = [worker.state.tables.edits.counts[:-1] for worker in both.workers]
    assert torch.equal(*counts) and all(len(row.out) == TOKENS for row in rows[1])

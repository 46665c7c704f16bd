"""Texts with penalties, biases and bans: those of a recount in NumPy, token by token, whatever drafts.

The oracle runs the whole text through `transformers` for every token and counts again from the text.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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


def test_a_count_that_ignores_what_is_drafted_changes_texts(
    make_worker: MakeWorker, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: counts of the round's start for every node."""
    monkeypatch.setattr("aerie.spec.round.verify._paths", lambda *_: None)
    rows = run(make_worker(), params(0.0), drafting=[True] * 4, **SHAPES["tree"])
    assert [row.out for row in rows] != expected[0.0]


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

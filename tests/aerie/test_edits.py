"""Penalties and biases on the demo pair: one text whatever drafts, overlaps, is preempted or stands beside it."""

from collections.abc import Iterator
from typing import Any

import pytest

from aerie import LLM, SamplingParams
from aerie.contracts.errors import BadRequest
from tests.aerie.test_llm import OPEN, make

TREE = {"spec__depth": 4, "spec__topk": 4, "spec__nodes": 16, "spec__by_load": ()}
WAYS: dict[str, dict[str, Any]] = {
    "chains in torch": {"engine__kernels": "torch"},
    "trees": TREE,
    "one after the other": {"scheduler__overlap": False},
    "preempted": {"engine__kv_tokens": 192, "model__max_length": 112, "spec__by_load": ()},
    "one slot": {"engine__edit_slots": 1},
    "plain": {"spec__head": "none"},
}
LONG: dict[str, Any] = {"max_tokens": 48, "ignore_eos": True}
PARAMS = [
    SamplingParams(temperature=0.0, repetition_penalty=1.5, **LONG),
    SamplingParams(temperature=0.8, seed=1, frequency_penalty=1.8, presence_penalty=1.9, **LONG),
    SamplingParams(temperature=0.9, seed=2, **LONG),
    SamplingParams(temperature=0.9, seed=3, logit_bias={300: 25.0, 301: -9.0}, min_tokens=30, top_p=0.9, **LONG),
    SamplingParams(temperature=1.2, seed=4, allowed_token_ids=range(200, 260), top_k=9, **LONG),
]


def answers(llm: LLM, params: list[SamplingParams] = PARAMS) -> list[list[int]]:
    return [one.outputs[0].token_ids for one in llm.chat([OPEN] * len(params), params, use_tqdm=False)]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with make() as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[list[int]]:
    return answers(llm)


@pytest.mark.parametrize("way", WAYS)
def test_a_text_does_not_depend_on_how_it_is_made(expected: list[list[int]], way: str) -> None:
    with make(**WAYS[way]) as other:
        results = other.chat([OPEN] * len(PARAMS), PARAMS, use_tqdm=False)
    assert [one.outputs[0].token_ids for one in results] == expected
    usages = [one.usage for one in results if one.usage is not None]
    assert (sum(usage.preemptions for usage in usages) > 0) == (way == "preempted")


def test_a_text_does_not_depend_on_what_stands_beside_it(llm: LLM, expected: list[list[int]]) -> None:
    """Nor on the prefix cache, which holds the whole prompt by now."""
    assert [answers(llm, [one])[0] for one in PARAMS] == expected


def test_each_edit_shows(llm: LLM, expected: list[list[int]]) -> None:
    plain = [SamplingParams(temperature=one.temperature, seed=one.seed, **LONG) for one in PARAMS]
    assert [one != own for one, own in zip(answers(llm, plain), expected, strict=True)] == [
        True,
        True,
        False,
        True,
        True,
    ]
    assert set(expected[4]) <= set(range(200, 260))
    forced = SamplingParams(temperature=1.0, logit_bias={301: 100.0}, max_tokens=5, ignore_eos=True)
    assert answers(llm, [forced]) == [[301] * 5]


def test_bad_words_are_not_chosen(llm: LLM) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=12)
    usual = answers(llm, [greedy])[0]
    words = [word for token in usual if (word := llm.tokenizer.written(token)).strip() and "\ufffd" not in word]
    single = next(word for word in words if len(llm.tokenizer.ids(word, add_special_tokens=False)) == 1)
    [banned] = llm.tokenizer.ids(single, add_special_tokens=False)
    without = answers(llm, [SamplingParams(temperature=0.0, max_tokens=12, bad_words=[single])])[0]
    assert banned in usual and banned not in without
    with pytest.raises(BadRequest, match=r"bad_words\[0\] has \d+ tokens"):
        llm.chat(OPEN, SamplingParams(bad_words=["a text of several tokens"]))


def test_the_slots_and_their_bytes_are_reported(llm: LLM) -> None:
    capacity = llm._lane.capacity
    assert capacity.report["edit_slots"] == capacity.edit_slots > 0
    assert capacity.report["edit_bytes"] == 8 * (capacity.edit_slots + 1) * capacity.vocabulary

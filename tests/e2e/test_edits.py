"""Penalties, biases and bans with the official client against a live server."""

from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.e2e.conftest import QUESTION

FIELDS: dict[str, Any] = {"temperature": 0.8, "seed": 3, "frequency_penalty": 0.8, "presence_penalty": -0.3}
EXTRA: dict[str, Any] = {"repetition_penalty": 1.3, "return_token_ids": True}


def ids(client: OpenAI, extra: dict[str, Any], **fields: Any) -> list[int]:
    answer = client.chat.completions.create(
        model="aerie-demo", messages=QUESTION, max_tokens=40, extra_body=EXTRA | extra, **fields
    )
    found: list[int] = answer.choices[0].token_ids
    return found


def test_speculation_leaves_a_penalized_text_as_it_is(client: OpenAI) -> None:
    drafted = ids(client, {}, **FIELDS)
    assert drafted == ids(client, {"speculation": {"enabled": False}}, **FIELDS)
    assert drafted != ids(client, {"repetition_penalty": 1.0}, temperature=0.8, seed=3)


def first_token(client: OpenAI, **fields: Any) -> tuple[int, Any]:
    """The id of the likeliest answer's first token, and its log probabilities."""
    answer = client.chat.completions.create(
        model="aerie-demo",
        messages=QUESTION,
        max_tokens=1,
        temperature=0,
        logprobs=True,
        top_logprobs=5,
        extra_body={"return_token_ids": True},
        **fields,
    )
    [choice] = answer.choices
    return choice.token_ids[0], choice.logprobs.content[0]


def test_biases_change_the_choice_and_not_the_log_probabilities(client: OpenAI) -> None:
    usual, place = first_token(client)
    forced, other = first_token(client, logit_bias={str(usual): -100})
    assert other.token == place.top_logprobs[1].token and forced != usual
    assert other.logprob == pytest.approx(place.top_logprobs[1].logprob, abs=1e-4)
    assert [one.token for one in other.top_logprobs] == [one.token for one in place.top_logprobs]


def test_only_allowed_tokens_are_chosen(client: OpenAI) -> None:
    assert set(ids(client, {"allowed_token_ids": [300, 301, 302]}, **FIELDS)) <= {300, 301, 302}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"logit_bias": {"5": -101}}, "logit_bias[5]"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"extra_body": {"repetition_penalty": 0}}, "repetition_penalty"),
        ({"extra_body": {"bad_words": ["a few words of several tokens"]}}, "bad_words[0]"),
    ],
)
def test_what_is_out_of_range_is_named(client: OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="aerie-demo", messages=QUESTION, max_tokens=2, **fields)
    assert error.value.param == param

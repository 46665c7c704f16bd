"""Fields that name tokens: every limit has an error with the field, the limit and the value given."""

import math
from typing import Any

import pytest

from aerie.contracts.errors import BadRequest
from aerie.contracts.sampling import SamplingParams, check_sampling
from aerie.contracts.token_lists import MAX_BANNED, MAX_BIASES, check_end, left

WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"logit_bias": {100: 1.0}}, "logit_bias", "logit_bias is 100; it must be at least 0 and at most 99"),
    ({"logit_bias": {-1: 1.0}}, "logit_bias", "logit_bias is -1; it must be at least 0 and at most 99"),
    ({"logit_bias": {3: 100.5}}, "logit_bias", "token 3 is 100.5; it must be at least -100.0 and at most 100.0"),
    ({"logit_bias": {3: math.nan}}, "logit_bias", "token 3 is nan"),
    ({"logit_bias": {3: -math.inf}}, "logit_bias", "token 3 is -inf"),
    ({"logit_bias": dict.fromkeys(range(MAX_BIASES + 1), 0.0)}, "logit_bias", "has 1025 entries; at most 1024"),
    ({"allowed_token_ids": ()}, "allowed_token_ids", "allowed_token_ids is empty"),
    ({"allowed_token_ids": (1, 100)}, "allowed_token_ids", "allowed_token_ids is 100; it must be"),
    ({"allowed_token_ids": (1, 2), "banned_token_ids": (2, 1)}, "allowed_token_ids", "no token is left to choose"),
    ({"banned_token_ids": tuple(range(100))}, "allowed_token_ids", "no token is left to choose"),
    ({"banned_token_ids": tuple(range(MAX_BANNED + 1))}, "bad_words", "1025 tokens; at most 1024"),
]


@pytest.mark.parametrize(("fields", "param", "reported"), WRONG, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str, reported: str) -> None:
    with pytest.raises(BadRequest) as error:
        check_sampling(SamplingParams(**fields), temperature_max=2.0, vocabulary=100)
    assert error.value.param == param and reported in error.value.message


def test_the_limits_themselves_pass() -> None:
    fields: dict[str, Any] = {
        "logit_bias": dict.fromkeys(range(MAX_BIASES), -100.0),
        "allowed_token_ids": (0, 1999),
        "banned_token_ids": (0,),
    }
    check_sampling(SamplingParams(**fields), temperature_max=2.0, vocabulary=2000)


def test_what_is_left_is_what_is_allowed_less_what_is_banned() -> None:
    assert list(left(None, (1, 3), 5)) == [0, 2, 4]
    assert list(left((3, 1, 4), (1,), 5)) == [3, 4]


@pytest.mark.parametrize(
    ("min_tokens", "allowed", "banned", "refused"),
    [
        (0, (1, 2), (), False),
        (3, (1, 2), (), True),
        (3, (1, 2, 5), (), False),
        (3, (1, 2, 5), (5,), True),
        (3, None, (0, 3, 4, 5), True),
        (3, None, (0, 3, 4), False),
        (3, None, (), False),
    ],
)
def test_min_tokens_needs_a_token_that_does_not_end_the_answer(
    min_tokens: int, allowed: tuple[int, ...] | None, banned: tuple[int, ...], refused: bool
) -> None:
    """Tokens 1 and 2 end the answer, of a vocabulary of six."""
    if not refused:
        check_end(min_tokens, allowed, banned, (1, 2), 6)
        return
    with pytest.raises(BadRequest, match="every token that may be chosen ends the answer") as error:
        check_end(min_tokens, allowed, banned, (1, 2), 6)
    assert error.value.param == "min_tokens"


def test_edits_are_the_fields_that_need_a_slot() -> None:
    assert SamplingParams(temperature=0.3, top_k=4, min_tokens=2, stop_token_ids=(5,)).edits == []
    every: dict[str, Any] = {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": -0.1}
    every |= {"logit_bias": {1: 0.5}, "allowed_token_ids": (1,), "banned_token_ids": (2,)}
    names = [name.replace("banned_token_ids", "bad_words") for name in every]
    assert SamplingParams(**every).edits == names
    assert [SamplingParams(**{name: value}).edits for name, value in every.items()] == [[name] for name in names]

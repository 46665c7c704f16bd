"""Log probabilities in OpenAI's shapes: what a completion's `top_logprobs` holds, and what a chat's does."""

import pytest

from aerie.contracts.messages import TokenLogprobs
from aerie.server.openai.choice import Delta
from aerie.server.openai.logprobs import FLOOR, chat_logprobs, completion_logprobs
from aerie.server.text.tokenizer import Tokenizer


def delta_of(tokenizer: Tokenizer, sampled: str, *ranked: str, logprob: float = -3.0) -> Delta:
    """One token, sampled where those with -0.5 and minus infinity lead the ranks."""
    ids = [tokenizer.ids(text, add_special_tokens=False)[0] for text in (sampled, *ranked)]
    found = TokenLogprobs(logprob=logprob, rank_ids=ids[1:], rank_logprobs=[-0.5, float("-inf")][: len(ranked)])
    return Delta(text=sampled, ids=ids[:1], drafted=[False], logprobs=[found], offsets=[0])


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [(2, {"a": -0.5, "b": FLOOR, "c": -3.0}), (1, {"a": -0.5, "c": -3.0}), (0, {"c": -3.0})],
)
def test_a_completion_always_has_the_sampled_token(
    tokenizer: Tokenizer, ranks: int, expected: dict[str, float]
) -> None:
    reported = completion_logprobs(tokenizer, delta_of(tokenizer, "c", "a", "b"), ranks)
    assert reported["top_logprobs"] == [expected]
    assert list(reported["top_logprobs"][0]) == list(expected)


def test_a_sampled_token_among_the_ranks_is_there_once(tokenizer: Tokenizer) -> None:
    delta = delta_of(tokenizer, "a", "a", "b", logprob=-0.5)
    assert completion_logprobs(tokenizer, delta, 2)["top_logprobs"] == [{"a": -0.5, "b": FLOOR}]


def test_of_tokens_written_alike_the_sampled_one_counts(tokenizer: Tokenizer) -> None:
    piece, other = (
        token for token in range(tokenizer.vocabulary) if tokenizer.pieces.bytes_of(token) in (b"\xf5", b"\xf6")
    )
    found = TokenLogprobs(logprob=-3.0, rank_ids=[other], rank_logprobs=[-0.5])
    delta = Delta(ids=[piece], drafted=[False], logprobs=[found], offsets=[0])
    reported = completion_logprobs(tokenizer, delta, 1)
    assert reported["top_logprobs"] == [{"\N{REPLACEMENT CHARACTER}": -3.0}]
    assert reported["token_logprobs"] == [-3.0]


def test_a_chat_has_the_likeliest_and_tells_the_sampled_one_beside_them(tokenizer: Tokenizer) -> None:
    (entry,) = chat_logprobs(tokenizer, delta_of(tokenizer, "c", "a", "b"), 1)["content"]
    assert (entry["token"], entry["logprob"]) == ("c", -3.0)
    assert [ranked["token"] for ranked in entry["top_logprobs"]] == ["a"]
    (entry,) = chat_logprobs(tokenizer, delta_of(tokenizer, "c", "a"), 0)["content"]
    assert entry["top_logprobs"] == []

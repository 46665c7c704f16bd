"""Sampling fields that name single tokens: what they may hold, and what they leave to choose from.

`contracts.sampling` checks a request's lists here. The scheduler asks once more when it knows which tokens end the
request.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from aerie.contracts.errors import BadRequest
from aerie.contracts.sampling_field import SamplingField

MAX_BIASES = 1024
"""Of `logit_bias`."""
MOST_BIAS = 100.0
"""Also the least, negated."""
MAX_BANNED = 1024
"""Ids of `bad_words`."""


def check_ids(name: str, ids: Sequence[int], vocabulary: int) -> None:
    """Raises BadRequest for an id outside the vocabulary."""
    field = SamplingField(name=name, kind=int, least=0)
    for token in ids:
        field.check(token, vocabulary - 1)


def check_biases(biases: Mapping[int, float], vocabulary: int) -> None:
    if len(biases) > MAX_BIASES:
        raise BadRequest(f"logit_bias has {len(biases)} entries; at most {MAX_BIASES} are allowed", param="logit_bias")
    check_ids("logit_bias", list(biases), vocabulary)
    for token, bias in biases.items():
        if not math.isfinite(bias) or abs(bias) > MOST_BIAS:
            raise BadRequest(
                f"logit_bias of token {token} is {bias}; it must be at least {-MOST_BIAS} and at most {MOST_BIAS}",
                param="logit_bias",
            )


def check_allowed(allowed: Sequence[int] | None, banned: Sequence[int], vocabulary: int) -> None:
    """Raises BadRequest for ids outside the vocabulary, and if no token is left to choose."""
    if allowed is not None:
        if not allowed:
            raise BadRequest(
                "allowed_token_ids is empty; name at least one token or leave it out", param="allowed_token_ids"
            )
        check_ids("allowed_token_ids", allowed, vocabulary)
    if len(banned) > MAX_BANNED:
        raise BadRequest(
            f"bad_words stand for {len(banned)} tokens; at most {MAX_BANNED} are allowed", param="bad_words"
        )
    if next(left(allowed, banned, vocabulary), None) is None:
        raise BadRequest(
            "no token is left to choose: bad_words rules out all of allowed_token_ids", param="allowed_token_ids"
        )


def left(allowed: Sequence[int] | None, banned: Collection[int], vocabulary: int) -> Iterator[int]:
    """The tokens that may be chosen."""
    without = set(banned)
    return (token for token in (range(vocabulary) if allowed is None else allowed) if token not in without)


def check_end(
    min_tokens: int, allowed: Sequence[int] | None, banned: Collection[int], stop_ids: Sequence[int], vocabulary: int
) -> None:
    """Raises BadRequest if only stop ids are left to choose while `min_tokens` bans them."""
    if not min_tokens or (allowed is None and not banned):
        return
    if next(left(allowed, {*banned, *stop_ids}, vocabulary), None) is None:
        raise BadRequest(
            f"min_tokens is {min_tokens}, and every token that may be chosen ends the answer; allow another token or "
            "set min_tokens to 0",
            param="min_tokens",
        )

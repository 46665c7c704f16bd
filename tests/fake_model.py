"""The fake device's "model": the next token is a hash of the noise key and of all tokens before it; and its oracle."""

from collections.abc import Iterable

import numpy as np

from aerie.contracts.sampling import SamplingParams, noise_key
from aerie.contracts.step import Capacity

MASK = (1 << 64) - 1
_LIMIT = 1 << 16
_WEIGHTS = np.random.default_rng(7).integers(1, 2**63, _LIMIT, dtype=np.uint64) | np.uint64(1)


def capacity(
    *,
    rows: int = 8,
    pages: int = 65,
    page_size: int = 4,
    max_length: int = 64,
    vocabulary: int = 50,
    end_ids: tuple[int, ...] = (1,),
    drafts: bool = True,
    reserve: int = 8,
    tail: int = 0,
    edit_slots: int = 2,
) -> Capacity:
    return Capacity(
        rows=rows,
        pages=pages,
        page_size=page_size,
        max_length=max_length,
        vocabulary=vocabulary,
        end_ids=end_ids,
        drafts=drafts,
        reserve=reserve,
        tail=tail,
        edit_slots=edit_slots,
    )


def state_of(tokens: np.ndarray, first: int = 0) -> int:
    """The hash of a sequence; sums of states of consecutive pieces are the state of the whole."""
    weights = _WEIGHTS[first : first + len(tokens)]
    return int(((tokens.astype(np.uint64) + np.uint64(1)) * weights).sum(dtype=np.uint64))


def pick(state: int, key: int, vocabulary: int, banned: Iterable[int]) -> int:
    mixed = ((state ^ key) * 0x9E3779B97F4A7C15) & MASK
    token = (mixed >> 29) % vocabulary
    while token in banned:
        token = (token + 1) % vocabulary
    return token


def answer(
    prompt: list[int], sampling: SamplingParams, capacity: Capacity, *, max_length: int, choice: int = 0
) -> tuple[list[int], str]:
    """The oracle: what the fake model answers to a request alone on a calm device, and why it ends."""
    key = noise_key(sampling.seed, prompt, choice)
    stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(capacity.end_ids))
    limit = min(len(prompt) + sampling.max_tokens, max_length)
    tokens = list(prompt)
    while True:
        banned = stops if len(tokens) < len(prompt) + sampling.min_tokens else ()
        token = pick(state_of(np.array(tokens)), key, capacity.vocabulary, banned)
        tokens.append(token)
        if token in stops:
            return tokens[len(prompt) :], "stop"
        if len(tokens) >= limit:
            return tokens[len(prompt) :], "length"

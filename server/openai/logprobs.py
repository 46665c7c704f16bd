"""Log probabilities in OpenAI's two shapes. They come from the target, whether a token was drafted or not."""

import math
from typing import Any

from aerie.contracts.messages import TokenLogprobs
from aerie.server.openai.choice import Delta
from aerie.server.text.tokenizer import Tokenizer

FLOOR = -9999.0
"""Replaces minus infinity, which JSON cannot represent."""


def chat_logprobs(tokenizer: Tokenizer, delta: Delta, ranks: int) -> dict[str, Any]:
    content = [
        {
            **_entry(tokenizer, token, found.logprob),
            "top_logprobs": [_entry(tokenizer, *ranked) for ranked in _ranked(found, ranks)],
        }
        for token, found in zip(delta.ids, delta.logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokenizer: Tokenizer, delta: Delta, ranks: int) -> dict[str, Any]:
    return {
        "tokens": [tokenizer.written(token) for token in delta.ids],
        "token_logprobs": [_finite(found.logprob) for found in delta.logprobs],
        "top_logprobs": [
            _by_text(tokenizer, token, found, ranks) for token, found in zip(delta.ids, delta.logprobs, strict=True)
        ],
        "text_offset": delta.offsets,
    }


def _by_text(tokenizer: Tokenizer, sampled: int, found: TokenLogprobs, ranks: int) -> dict[str, float]:
    """The most likely tokens and the sampled one, so up to `ranks` + 1. Among tokens with the same text, such as pieces
    of characters, the sampled one wins, then the most likely.
    """
    by_text: dict[str, float] = {}
    for token, logprob in _ranked(found, ranks):
        by_text.setdefault(tokenizer.written(token), _finite(logprob))
    return by_text | {tokenizer.written(sampled): _finite(found.logprob)}


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    return {
        "token": tokenizer.written(token),
        "logprob": _finite(logprob),
        "bytes": list(tokenizer.pieces.bytes_of(token)),
    }


def _ranked(found: TokenLogprobs, ranks: int) -> list[tuple[int, float]]:
    return list(zip(found.rank_ids, found.rank_logprobs, strict=True))[:ranks]


def _finite(logprob: float) -> float:
    return max(logprob, FLOOR) if math.isfinite(logprob) else FLOOR

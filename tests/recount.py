"""Penalties and biases restated in NumPy, from a text and nothing else."""

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.contracts.edit_starts import EditStarts
from aerie.contracts.sampling import SamplingParams
from aerie.scheduler.edit_slots import edit_starts


def recounted(
    logits: NDArray[np.float32], prompt: Sequence[int], answer: Sequence[int], params: SamplingParams
) -> NDArray[np.float32]:
    """logits [V] of the token after `answer` -> what the request's penalties, biases and bans make of them."""
    times = Counter(answer)
    made = logits.copy()
    for token in range(logits.size):
        value = float(logits[token]) + float(np.float32(params.logit_bias.get(token, 0.0)))
        if token in times or token in prompt:
            penalty = float(np.float32(params.repetition_penalty))
            value = value / penalty if value > 0 else value * penalty
        value -= float(np.float32(params.frequency_penalty)) * times[token]
        value -= float(np.float32(params.presence_penalty)) * (times[token] > 0)
        allowed = params.allowed_token_ids is None or token in params.allowed_token_ids
        made[token] = value if allowed and token not in params.banned_token_ids else -np.inf
    return made


def starts_of(
    rows: Sequence[tuple[SamplingParams, Sequence[int], Sequence[int]]], slots: Sequence[int], vocabulary: int
) -> EditStarts | None:
    """What the scheduler tells a device of rows with these parameters, prompts and answers so far."""
    requests: list[Any] = [
        SimpleNamespace(
            message=SimpleNamespace(sampling=params),
            edit_slot=slot if params.edits else -1,
            tokens=[*prompt, *answer],
            prompt_length=len(prompt),
        )
        for (params, prompt, answer), slot in zip(rows, slots, strict=True)
    ]
    return edit_starts(requests, vocabulary)

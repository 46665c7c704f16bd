"""What a target answers, generated in batches in torch: to examine it while nobody serves it."""

from typing import Any

import torch
from transformers import LlamaForCausalLM

from aerie.train.demo.batches import Sample

_ROWS = 128
_SLACK = 1.25
"""An answer may be this many times as long as it should be before it is cut off."""


def complete(
    model: LlamaForCausalLM, prompts: list[list[int]], lengths: list[int], *, temperature: float, seed: int
) -> list[Sample]:
    """Each prompt with the model's reply, for replies of about `lengths` tokens; equal arguments give equal replies.

    Prompts whose replies have similar lengths share a batch, since a batch takes as long as its longest row.
    """
    torch.manual_seed(seed)
    order = sorted(range(len(prompts)), key=lengths.__getitem__)
    samples: dict[int, Sample] = {}
    for start in range(0, len(order), _ROWS):
        rows = order[start : start + _ROWS]
        limit = int(_SLACK * max(lengths[row] for row in rows)) + 8
        replies = _generate(model, [prompts[row] for row in rows], temperature, limit)
        for row, reply in zip(rows, replies, strict=True):
            samples[row] = Sample(prompts[row] + reply, [False] * len(prompts[row]) + [True] * len(reply))
    return [samples[row] for row in range(len(prompts))]


@torch.inference_mode()
def _generate(model: LlamaForCausalLM, prompts: list[list[int]], temperature: float, limit: int) -> list[list[int]]:
    """Replies with their end token; prompts are padded on the left."""
    width, pad = max(map(len, prompts)), model.config.pad_token_id
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    seen = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    how = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    whole: Any = model  # its generate() is typed for another class
    output = whole.generate(
        ids, attention_mask=seen, max_new_tokens=limit, pad_token_id=pad, do_sample=bool(how), **how
    )
    end = model.config.eos_token_id
    assert isinstance(end, int)
    return [_until_end(row, end) for row in output[:, width:].tolist()]


def _until_end(reply: list[int], end: int) -> list[int]:
    return reply[: reply.index(end) + 1] if end in reply else reply

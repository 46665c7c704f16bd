"""Conversations as token ids with marked answers, and the padded batches that training reads."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from aerie.train.recital.docstrings import Entry
from aerie.train.recital.questions import conversation

_TURNS = (1, 1, 1, 1, 1, 1, 1, 2, 3, 4)
"""Questions per conversation, drawn from here: most have one, the rest teach longer contexts."""
_POOL = 256
"""Conversations that are sorted by length together, to reduce padding."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One conversation: its ids, and for each id whether it belongs to an answer (the closing `<|end|>` included)."""

    ids: list[int]
    answer: list[bool]


@dataclass(frozen=True, slots=True)
class Batch:
    """`ids` [rows, length] right-padded, `answer` [rows, length] bool, False on padding."""

    ids: Tensor
    answer: Tensor


class Renderer:
    """Turns messages into ids as the chat template does, in pieces that are cached: they repeat in every epoch."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[str, list[int]] = {}

    def sample(self, messages: list[dict[str, str]]) -> Sample:
        ids, answer = [self._special("<|bos|>")], [False]
        for message in messages:
            body = [*self.encode(message["content"]), self._special("<|end|>")]
            ids += [self._special(f"<|{message['role']}|>"), *body]
            answer += [False, *[message["role"] == "assistant"] * len(body)]
        return Sample(ids, answer)

    def prompt(self, question: str) -> list[int]:
        """The ids of one question, up to the start of the answer."""
        return [*self.sample([{"role": "user", "content": question}]).ids, self._special("<|assistant|>")]

    def encode(self, text: str) -> list[int]:
        if text not in self._pieces:
            self._pieces[text] = self._tokenizer.encode(text, add_special_tokens=False)
        return self._pieces[text]

    def _special(self, token: str) -> int:
        found = self._tokenizer.convert_tokens_to_ids(token)
        assert isinstance(found, int)
        return found


def epoch(
    entries: list[Entry], renderer: Renderer, *, tokens: int, longest: int, rng: random.Random
) -> Iterator[Batch]:
    """Every entry once, asked in a random phrasing, in batches of at most `tokens` padded tokens."""
    return batches(conversations(entries, renderer, rng), tokens=tokens, longest=longest, rng=rng)


def conversations(entries: list[Entry], renderer: Renderer, rng: random.Random) -> list[Sample]:
    """Every entry once, in a random phrasing, one or several per conversation."""
    return [renderer.sample(conversation(group, rng)) for group in _groups(entries, rng)]


def batches(samples: list[Sample], *, tokens: int, longest: int, rng: random.Random) -> Iterator[Batch]:
    """Batches of at most `tokens` padded tokens, or of one sample; samples of similar length share a batch."""
    found: list[list[Sample]] = []
    for start in range(0, len(samples), _POOL):
        found += _batches(sorted(samples[start : start + _POOL], key=lambda s: len(s.ids)), tokens, longest)
    rng.shuffle(found)
    return (padded(batch, longest) for batch in found)


def _groups(entries: list[Entry], rng: random.Random) -> Iterator[list[Entry]]:
    order = rng.sample(entries, len(entries))
    while order:
        turns = rng.choice(_TURNS)
        yield order[:turns]
        order = order[turns:]


def _batches(samples: list[Sample], tokens: int, longest: int) -> Iterator[list[Sample]]:
    batch: list[Sample] = []
    for sample in samples:
        if batch and (len(batch) + 1) * min(len(sample.ids), longest) > tokens:
            yield batch
            batch = []
        batch.append(sample)
    yield batch


def padded(samples: list[Sample], longest: int) -> Batch:
    """One batch, as wide as its longest sample, but at most `longest`."""
    width = min(longest, max(len(sample.ids) for sample in samples))
    ids = torch.zeros(len(samples), width, dtype=torch.long)
    answer = torch.zeros(len(samples), width, dtype=torch.bool)
    for row, sample in enumerate(samples):
        size = min(width, len(sample.ids))
        ids[row, :size] = torch.tensor(sample.ids[:size])
        answer[row, :size] = torch.tensor(sample.answer[:size])
    return Batch(ids, answer)

"""Conversations about the docstrings as token ids, and the batches of an epoch."""

import random
from collections.abc import Iterator

from transformers import PreTrainedTokenizerFast

from aerie.train.demo.batches import Batch, Sample, batches
from aerie.train.demo.corpus.docstrings import Entry
from aerie.train.demo.corpus.questions import conversation

_TURNS = (1, 1, 1, 1, 1, 1, 1, 2, 3, 4)
"""Questions per conversation, drawn from here: most have one, the rest teach longer contexts."""


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
    samples = [renderer.sample(conversation(group, rng)) for group in _groups(entries, rng)]
    return batches(samples, tokens=tokens, longest=longest, rng=rng)


def _groups(entries: list[Entry], rng: random.Random) -> Iterator[list[Entry]]:
    order = rng.sample(entries, len(entries))
    while order:
        turns = rng.choice(_TURNS)
        yield order[:turns]
        order = order[turns:]

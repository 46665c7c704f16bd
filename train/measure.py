"""How well a head drafts: counts over batches, and the figure on held-out questions that its model card carries."""

import random
import time

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from train.answers import answer
from train.config import HeadRun
from train.conversations import Batch, batches
from train.docstrings import Entry
from train.features import Features, FrozenTarget
from train.head import Head
from train.loss import Judged, acceptance_length, judge
from train.questions import HELD_OUT
from train.unroll import unroll
from train.vocabulary import DraftVocabulary

_LOG_EVERY = 25
_JUDGED = 64
"""Held-out questions that a head is measured on."""


def measure(
    run: HeadRun,
    head: Head,
    target: FrozenTarget,
    vocabulary: DraftVocabulary,
    tokenizer: PreTrainedTokenizerFast,
    entries: list[Entry],
) -> str:
    """Conditional accuracies on the target's greedy answers to held-out phrasings, and what a greedy chain accepts."""
    rng = random.Random(run.seed)
    questions = [(entry, rng.choice(HELD_OUT)) for entry in rng.sample(entries, min(_JUDGED, len(entries)))]
    samples = answer(target.model, tokenizer, questions, temperature=0.0, seed=run.seed)
    log = Log(run.depth)
    for batch in batches(samples, tokens=run.tokens_per_batch, longest=run.longest, rng=rng):
        with torch.no_grad():
            features = target.features(batch.ids)
            log.add(0, judged(head, target.embedding, vocabulary, batch, features, run.depth), quiet=True)
    return f"greedy answers to {len(questions)} held-out questions: {log.line()}"


def judged(
    head: Head, embedding: Tensor, vocabulary: DraftVocabulary, batch: Batch, features: Features, depth: int
) -> Judged:
    outputs = unroll(head, embedding, batch.ids, features.taps, depth)
    return judge(head, outputs, features.logits, batch.answer, vocabulary)


class Log:
    """Adds up what batches were judged to be, and prints it now and then."""

    def __init__(self, depth: int) -> None:
        self._began = time.monotonic()
        self._depth = depth
        self._clear()

    def add(self, step: int, judged: Judged, *, quiet: bool = False) -> None:
        depth = len(judged.reached)
        self._count += depth
        self._loss += judged.loss.item()
        self._sums[:, :depth] += torch.stack([judged.reached, judged.right])
        if not quiet and step % _LOG_EVERY == 0:
            print(f"step {step} {self.line()} seconds {time.monotonic() - self._began:.0f}", flush=True)
            self._clear()

    def line(self) -> str:
        reached, right = self._sums
        accuracies = " ".join(f"{float(a):.3f}" for a in right / reached.clamp(min=1))
        length = acceptance_length(reached, right)
        return f"loss {self._loss / self._count:.3f} accuracies {accuracies} length {length:.2f}"

    def _clear(self) -> None:
        self._count, self._loss, self._sums = 0, 0.0, torch.zeros(2, self._depth, dtype=torch.long)

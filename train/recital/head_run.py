"""Trains the EAGLE-3 head on the frozen target: on the corpus, and on the target's own answers.

The head has to predict the target's output, not the corpus, so its goal at every position is the target's distribution.
Called by `python -m aerie.train head CONFIG`; `descent` has the loop, which resumes exactly after a kill.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from aerie.train.heads.export import export
from aerie.train.heads.features import Features, FeatureStore
from aerie.train.heads.head import Head
from aerie.train.heads.loss import Judged, judge
from aerie.train.heads.unroll import unroll
from aerie.train.heads.vocabulary import DraftVocabulary, keep_vocabulary
from aerie.train.recital.answers import own_answers
from aerie.train.recital.config import EagleRun, HeadRun, TrainConfig
from aerie.train.recital.conversations import Batch, Renderer, Sample, batches, conversations
from aerie.train.recital.descent import Progress, course_of, descend_along
from aerie.train.recital.docstrings import Entry, read
from aerie.train.recital.measure import measure
from aerie.train.recital.start import started_head, started_vocabulary

Key = tuple[int, int]
"""A batch: the rendering of the data, and its number in that rendering."""


def train_head(config: TrainConfig) -> None:
    """Trains the head of `config.head` on the target in `config.target.out` and writes it to `config.head.out`."""
    run, folder = config.head, Path(config.target.out)
    torch.set_num_threads(run.threads)
    entries = read(Path(config.target.corpus))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    vocabulary = started_vocabulary(run, entries, tokenizer)
    keep_vocabulary(Path(run.work) / "vocabulary.safetensors", vocabulary)
    print(f"draft vocabulary covers {vocabulary.coverage:.2%} of the corpus's answer tokens", flush=True)
    head, target = started_head(run, folder, vocabulary)
    own = own_answers(run, target.model, tokenizer, entries)
    store, renderer = FeatureStore(target), Renderer(tokenizer)

    def ahead(skip: int) -> Iterator[tuple[Key, Batch]]:
        return _batches(run, entries, own, renderer, skip=skip)

    def learned(step: int, key: Key, batch: Batch) -> Iterator[Judged]:
        features = store.features(key, batch.ids)
        yield judged_batch(head, target.embedding, vocabulary, batch, features, drawn_depth(run, step))

    def asked(batch: Batch) -> Iterator[Judged]:
        yield judged_batch(head, target.embedding, vocabulary, batch, target.features(batch.ids), run.depth)

    descend_along(head, course_of(run), Path(run.work) / "checkpoint", ahead, learned, Progress(run.depth).add)
    measured, accuracies = measure(run, target, tokenizer, entries, asked)
    print(measured, flush=True)
    facts: dict[str, Any] = {"trained_on": _trained_on(run), "measured": measured, "accuracies": accuracies}
    export(head, vocabulary, folder, Path(run.out), **facts)


def drawn_depth(run: EagleRun, step: int) -> int:
    """The number of steps to unroll this batch: more than k with probability decay^k.

    On average this is the usual sum of losses weighted by decay^k, at the cost of 4 steps instead of 7 (decay 0.8).
    """
    rng, depth = random.Random(f"{run.seed} depth {step}"), 1
    while depth < run.depth and rng.random() < run.step_decay:
        depth += 1
    return depth


def judged_batch(
    head: Head, embedding: Tensor, vocabulary: DraftVocabulary, batch: Batch, features: Features, depth: int
) -> Judged:
    """The losses of a batch drafted `depth` tokens deep."""
    outputs = unroll(head, embedding, batch.ids, features.taps, depth)
    return judge(head, outputs, features.logits, batch.answer, vocabulary)


def _batches(
    run: HeadRun, entries: list[Entry], own: list[Sample], renderer: Renderer, *, skip: int
) -> Iterator[tuple[Key, Batch]]:
    """Batches without end, each with its key; an epoch has the corpus once and every answer of the target once."""
    number = 0
    while True:
        rendering = number % run.renderings
        rng = random.Random(f"{run.seed} head {rendering}")
        samples = conversations(entries, renderer, rng) + own
        rng.shuffle(samples)
        found = batches(samples, tokens=run.tokens_per_batch, longest=run.longest, rng=rng)
        keyed = [((rendering, index), batch) for index, batch in enumerate(found)]
        random.Random(f"{run.seed} order {number}").shuffle(keyed)
        yield from keyed[skip:]
        skip = max(0, skip - len(keyed))
        number += 1


def _trained_on(run: HeadRun) -> str:
    own = ", ".join(f"T={temperature:g}" for temperature in run.answer_temperatures)
    own = f", and the target's own answers ({own})" if own else ""
    return (
        f"{run.steps} batches of at most {run.tokens_per_batch} tokens from the docstrings of Python's standard library"
        f"{own}; {run.depth} steps of training-time test"
    )

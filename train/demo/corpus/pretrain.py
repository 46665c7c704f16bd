"""Trains a target on questions about Python names answered by their docstrings."""

import random
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from aerie.train.demo.batches import Batch
from aerie.train.demo.config import DocstringTarget
from aerie.train.demo.corpus.conversations import Renderer, epoch
from aerie.train.demo.corpus.docstrings import Entry, read
from aerie.train.demo.corpus.tokenizer import train_tokenizer
from aerie.train.demo.learning import learn
from aerie.train.demo.model import export, fresh_model


def pretrain(run: DocstringTarget, out: Path, *, seed: int) -> None:
    """Writes tokenizer and target to `out` in Hugging Face's layout, weights in bf16; checkpoints are in a folder of
    it.
    """
    torch.set_num_threads(run.threads)
    torch.manual_seed(seed)
    entries = read(Path(run.corpus))
    tokenizer = build_tokenizer(run.vocabulary, entries)
    model, renderer = fresh_model(run.architecture, tokenizer), Renderer(tokenizer)
    learn(run, model, lambda step: _ahead(run, entries, renderer, seed, step), out / "checkpoint", last=run.steps)
    export(model, tokenizer, out)


def build_tokenizer(vocabulary: int, entries: list[Entry]) -> PreTrainedTokenizerFast:
    """Equal texts give equal tokenizers."""
    return train_tokenizer((text for entry in entries for text in (entry.name, entry.text)), vocabulary)


def _ahead(run: DocstringTarget, entries: list[Entry], renderer: Renderer, seed: int, skip: int) -> Iterator[Batch]:
    """Batches without end; the order of each epoch depends only on the seed and the epoch's number."""
    number = 0
    while True:
        rng = random.Random(f"{seed} {number}")
        for batch in epoch(entries, renderer, tokens=run.tokens_per_batch, longest=run.longest, rng=rng):
            skip -= 1
            if skip < 0:
                yield batch
        number += 1

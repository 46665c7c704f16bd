"""Trains the EAGLE-3 head on the frozen target: on the corpus, and on what the target itself answers.

The head has to guess what the target says, not what the corpus says; its goal at every position is the target's
distribution. Matrices are updated by Muon, `lm_head` and norms by AdamW. Resumes from its checkpoint after a kill, in
the same order of data.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import Optimizer
from transformers import PreTrainedTokenizerFast

from train import checkpoint
from train.answers import answer_all, load_samples, save_samples
from train.config import HeadRun, TrainConfig
from train.conversations import Batch, Renderer, Sample, batches, conversations
from train.docstrings import Entry, read
from train.export import export
from train.features import Features, FeatureStore, FrozenTarget
from train.head import Head
from train.loss import Judged
from train.measure import Log, judged, measure
from train.muon import Muon
from train.schedule import set_rate, share
from train.start import started_head, started_vocabulary
from train.vocabulary import DraftVocabulary

_ADAM_BETAS = (0.9, 0.95)


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
    own = [
        sample
        for temperature in run.answer_temperatures
        for sample in _own(run, target, tokenizer, entries, temperature)
    ]
    optimizers = _optimizers(head)
    work = Path(run.work) / "checkpoint"
    start = checkpoint.load(work, head, optimizers)
    data, store = _batches(run, entries, own, Renderer(tokenizer), skip=start), FeatureStore(target)
    log = Log(run.depth)
    for step in range(start, run.steps):
        key, batch = next(data)
        features = store.features(key, batch.ids)
        log.add(step + 1, _train_step(run, step, head, target, vocabulary, optimizers, batch, features))
        if (step + 1) % run.checkpoint_every == 0:
            checkpoint.save(work, step + 1, head, optimizers)
    measured = measure(run, head, target, vocabulary, tokenizer, entries)
    print(measured, flush=True)
    export(head, vocabulary, folder, Path(run.out), trained_on=_trained_on(run), measured=measured)


def _train_step(
    run: HeadRun,
    step: int,
    head: Head,
    target: FrozenTarget,
    vocabulary: DraftVocabulary,
    optimizers: list[Optimizer],
    batch: Batch,
    features: Features,
) -> Judged:
    level = share(step, steps=run.steps, warmup=run.warmup, decay=run.decay)
    for optimizer, rate in zip(optimizers, (run.matrix_rate, run.vector_rate), strict=True):
        set_rate(optimizer, rate * level)
    result = judged(head, target.embedding, vocabulary, batch, features, drawn_depth(run, step))
    result.loss.backward()
    nn.utils.clip_grad_norm_(head.parameters(), run.clip)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return result


def drawn_depth(run: HeadRun, step: int) -> int:
    """How deep this batch is unrolled: deeper than k with probability decay^k.

    On average this is the usual sum of losses weighed by decay^k, at the cost of 4 steps instead of 7 (decay 0.8).
    """
    rng, depth = random.Random(f"{run.seed} depth {step}"), 1
    while depth < run.depth and rng.random() < run.step_decay:
        depth += 1
    return depth


def _optimizers(head: Head) -> list[Optimizer]:
    matrices = [p for name, p in head.named_parameters() if p.ndim == 2 and not name.startswith("lm_head")]
    others = [p for name, p in head.named_parameters() if p.ndim != 2 or name.startswith("lm_head")]
    return [Muon(matrices, lr=0.0), torch.optim.AdamW(others, lr=0.0, betas=_ADAM_BETAS, weight_decay=0.0)]


def _own(
    run: HeadRun, target: FrozenTarget, tokenizer: PreTrainedTokenizerFast, entries: list[Entry], temperature: float
) -> list[Sample]:
    """The target's answers at this temperature, generated once and kept beside the checkpoints."""
    path = Path(run.work) / f"answers-{temperature}.safetensors"
    if not path.exists():
        began = time.monotonic()
        save_samples(answer_all(target.model, tokenizer, entries, temperature, seed=run.seed), path)
        print(f"answered {len(entries)} questions at T={temperature} in {time.monotonic() - began:.0f} s", flush=True)
    return load_samples(path)


def _batches(
    run: HeadRun, entries: list[Entry], own: list[Sample], renderer: Renderer, *, skip: int
) -> Iterator[tuple[tuple[int, int], Batch]]:
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


def keep_vocabulary(path: Path, vocabulary: DraftVocabulary) -> None:
    """Notes the draft vocabulary at the start of a run. Raises ValueError where the run began with another."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({"draft_to_target": vocabulary.draft_to_target}, path)
    if not torch.equal(load_file(path)["draft_to_target"], vocabulary.draft_to_target):
        raise ValueError(f"the run in {path.parent} began with another draft vocabulary; move it away to start afresh")


def _trained_on(run: HeadRun) -> str:
    own = ", ".join(f"T={temperature:g}" for temperature in run.answer_temperatures)
    own = f", and the target's own answers ({own})" if own else ""
    return (
        f"{run.steps} batches of at most {run.tokens_per_batch} tokens from the docstrings of Python's standard library"
        f"{own}; {run.depth} steps of training-time test"
    )

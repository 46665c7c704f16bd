"""Trains the P-EAGLE head of a finished pair, on the corpus and on the target's own answers, and exports it.

Called by `python -m aerie.train peagle CONFIG`. The draft vocabulary, the answers and the initialization are those of
the pair's EAGLE-3 head, so that the two differ only in kind. Resumes from its checkpoint after a kill.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from aerie.contracts.errors import ConfigError
from aerie.contracts.provenance import weights_hash
from aerie.spec.checkpoints.card import origin_of
from aerie.train.heads.features import Features, FeatureStore, FrozenTarget
from aerie.train.heads.loss import Judged
from aerie.train.heads.peagle.elements import Drop
from aerie.train.heads.peagle.export import export_parallel
from aerie.train.heads.peagle.head import ParallelHead, ParallelShape, start_from
from aerie.train.heads.peagle.loss import Lesson, judge_parallel
from aerie.train.heads.vocabulary import DraftVocabulary, keep_vocabulary
from aerie.train.recital.answers import own_answers
from aerie.train.recital.config import TrainConfig
from aerie.train.recital.conversations import Batch, Renderer, batches, conversations
from aerie.train.recital.descent import Progress, course_of, descend
from aerie.train.recital.docstrings import read
from aerie.train.recital.measure import measure
from aerie.train.recital.peagle_config import ParallelRun
from aerie.train.recital.start import started_head, started_vocabulary


def train_parallel(run: ParallelRun, pair: TrainConfig) -> None:
    """Trains the head and writes it to `run.out`."""
    torch.set_num_threads(run.threads)
    folder = Path(pair.target.out)
    entries = read(Path(pair.target.corpus))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    vocabulary = started_vocabulary(pair.head, entries, tokenizer)
    keep_vocabulary(Path(run.work) / "vocabulary.safetensors", vocabulary)
    head, target = started_parallel(run, pair, vocabulary, tokenizer)
    own = own_answers(pair.head, target.model, tokenizer, entries)
    rng = random.Random(f"{run.seed} peagle")
    samples = conversations(entries, Renderer(tokenizer), rng) + own
    rng.shuffle(samples)
    found = list(batches(samples, tokens=run.tokens_per_batch, longest=run.longest, rng=rng))
    store, undropped = FeatureStore(target), run.model_copy(update={"rate": 1.0, "floor": 1.0})

    def judge(step: int, number: int, batch: Batch) -> Iterator[Judged]:
        return _judged(run, head, target.embedding, vocabulary, batch, store.features(number, batch.ids), step)

    def asked(batch: Batch) -> Iterator[Judged]:
        features = target.features(batch.ids)
        return _judged(undropped, head, target.embedding, vocabulary, batch, features, 0)

    descend(head, course_of(run), Path(run.work) / "checkpoint", found, run.seed, judge, Progress(run.depth).add)
    measured, accuracies = measure(run, target, tokenizer, entries, asked)
    print(measured, flush=True)
    export_parallel(
        head,
        target.embedding,
        vocabulary,
        folder,
        Path(run.out),
        depth=run.depth,
        trained_on=f"{run.steps} batches of at most {run.tokens_per_batch} tokens of the pair's data; {run.depth} "
        f"depths, of which each keeps {run.rate:g} of the one before, at least {run.floor:g} of all",
        measured=measured,
        accuracies=accuracies,
    )


def started_parallel(
    run: ParallelRun, pair: TrainConfig, vocabulary: DraftVocabulary, tokenizer: PreTrainedTokenizerFast
) -> tuple[ParallelHead, FrozenTarget]:
    """An untrained head and its target. The mask token is the padding id, which no served text contains."""
    sizes = pair.head.model_copy(update={"intermediate_size": run.intermediate_size, "seed": run.seed})
    single, target = started_head(sizes, Path(pair.target.out), vocabulary)
    torch.manual_seed(run.seed)
    head = ParallelHead(ParallelShape(single.shape, run.layers, tokenizer.pad_token_id))
    begun = single.state_dict() if run.start_from is None else _trained(Path(run.start_from), pair, vocabulary)
    start_from(head, begun, kept=run.keep_start)
    return head, target


def _trained(folder: Path, pair: TrainConfig, vocabulary: DraftVocabulary) -> dict[str, Tensor]:
    """An exported EAGLE-3 head's weights. Raises ConfigError if its target or draft vocabulary is another."""
    origin, target = origin_of(folder), weights_hash(Path(pair.target.out))
    if origin is None or origin.target != target:
        told = "does not say which target it was trained for" if origin is None else f"names the target {origin.target}"
        raise ConfigError(f"the card of {folder} {told}; this one is {target} (start_from)", param="start_from")
    weights = load_file(folder / "model.safetensors")
    if not torch.equal(weights["d2t"], vocabulary.d2t):
        raise ConfigError(
            f"{folder} was trained on another draft vocabulary than the pair's ({len(weights['d2t'])} ids, here "
            f"{len(vocabulary.d2t)}); name a head of this one (start_from)",
            param="start_from",
        )
    return weights


def _judged(
    run: ParallelRun,
    head: ParallelHead,
    embedding: Tensor,
    vocabulary: DraftVocabulary,
    batch: Batch,
    features: Features,
    step: int,
) -> Iterator[Judged]:
    lesson = Lesson(batch.ids, batch.answer, features.taps, features.logits)
    generator = torch.Generator().manual_seed(run.seed * 1_000_003 + step)
    drop = Drop(run.depth, run.rate, run.floor)
    return judge_parallel(
        head, embedding, lesson, vocabulary, drop, generator, limit=run.elements, decay=run.depth_decay
    )

"""One arm of an experiment with one seed: a head from initialization to export; resumes after a kill.

Called by `table`. Every head starts at random except for the target's final norm and output rows, so that arms differ
only in their configs. Heads of the feature loss keep both frozen, as their features are the target's states.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from aerie.train.demo.batches import Batch, Sample, batches
from aerie.train.experiments.config import Arm, Experiment, Proxy
from aerie.train.experiments.descent import Progress, Schedule, descend
from aerie.train.experiments.proxy import Pair, answers
from aerie.train.experiments.teaching import Teacher, judge_feature, stale_mask, without_template
from aerie.train.heads.draft_vocabulary import DraftVocabulary, draft_vocabulary
from aerie.train.heads.head import Head, default_boundaries
from aerie.train.heads.layout import write_head
from aerie.train.heads.loss import Judged, judge, loss_mask
from aerie.train.heads.objectives import OBJECTIVES
from aerie.train.heads.peagle.elements import Drop
from aerie.train.heads.peagle.head import ParallelHead, ParallelShape
from aerie.train.heads.peagle.layout import write_parallel
from aerie.train.heads.peagle.loss import Lesson, judge_parallel
from aerie.train.heads.unroll import unroll
from aerie.train.pipeline.fitting.initial import shape_for

_DECAY = 0.8
_DROP_RATE, _DROP_FLOOR = 0.7, 0.2
_WARMUP, _FALL, _CLIP = 20, 0.35, 0.5
_CHECKPOINTS = 4
_LONGEST = 512

Lost = Callable[[int, int, Batch], Iterator[Judged]]


def train_arm(proxy: Proxy, pair: Pair, experiment: Experiment, arm: Arm, seed: int, folder: Path) -> None:
    """Trains the arm and writes `folder`/head; checkpoints are in `folder`/work."""
    torch.set_num_threads(proxy.threads)
    samples = _samples(proxy, pair, arm)
    vocabulary = _vocabulary(proxy, pair)
    teacher = Teacher(pair.folder, _boundaries(arm, pair), longest=_LONGEST, threads=proxy.threads)
    torch.manual_seed(seed)
    head = _begun(proxy, arm, pair, teacher, vocabulary)
    rng = random.Random(f"{seed} batches")
    found = list(batches(samples, tokens=experiment.tokens_per_batch, longest=_LONGEST, rng=rng))
    lost = _lost(arm, head, teacher, vocabulary, seed)
    schedule = Schedule(
        steps=experiment.steps,
        matrix_rate=experiment.matrix_rate,
        vector_rate=experiment.vector_rate,
        warmup=_WARMUP,
        decay=_FALL,
        clip=_CLIP,
        checkpoint_every=max(1, experiment.steps // _CHECKPOINTS),
    )
    descend(
        head,
        schedule,
        folder / "work",
        found,
        seed,
        lost,
        Progress(arm.depth).add,
    )
    out = folder / "head"
    out.mkdir(parents=True, exist_ok=True)
    if isinstance(head, Head):
        write_head(head, vocabulary, out)
    else:
        write_parallel(head, teacher.end.embedding, vocabulary, out, depth=arm.depth)


def _samples(proxy: Proxy, pair: Pair, arm: Arm) -> list[Sample]:
    """Equal parts of the arm's domains; smaller amounts are prefixes of larger ones."""
    each = arm.answers // len(arm.domains)
    samples = [sample for domain in arm.domains for sample in answers(proxy, pair, domain, each)]
    return samples if arm.template == "right" else without_template(samples, pair.tokenizer)


def _vocabulary(proxy: Proxy, pair: Pair) -> DraftVocabulary:
    """Chosen from the target's training text of both domains; all arms share it."""
    texts = (entry.text for entries in pair.taught.values() for entry in entries)
    encoded = (pair.tokenizer.encode(text, add_special_tokens=False) for text in texts)
    always = pair.tokenizer.all_special_ids
    return draft_vocabulary(encoded, kept=proxy.draft_vocabulary, size=len(pair.tokenizer), always=always)


def _boundaries(arm: Arm, pair: Pair) -> tuple[int, ...]:
    layers = int(pair.layers)
    return default_boundaries(layers) if arm.taps == "fused" else (layers,)


def _begun(proxy: Proxy, arm: Arm, pair: Pair, teacher: Teacher, vocabulary: DraftVocabulary) -> Head | ParallelHead:
    shape = shape_for(teacher.end.model, teacher.boundaries, proxy.draft_vocabulary)
    shape = replace(shape, tap_norms=arm.norms, norm_output=arm.norms)
    head: Head | ParallelHead
    if arm.kind == "eagle3":
        head = Head(shape)
    else:
        head = ParallelHead(ParallelShape(shape, arm.layers, pair.tokenizer.pad_token_id))
    with torch.no_grad():
        head.norm.weight.copy_(teacher.end.norm_weight)
        head.lm_head.weight.copy_(teacher.end.output[vocabulary.draft_to_target])
    if arm.rows == "frozen":
        head.norm.requires_grad_(False)
        head.lm_head.requires_grad_(False)
    return head


def _lost(arm: Arm, head: Head | ParallelHead, teacher: Teacher, vocabulary: DraftVocabulary, seed: int) -> Lost:
    """Returns the arm's losses of a batch, by step and key."""

    def parallel(step: int, key: int, batch: Batch) -> Iterator[Judged]:
        assert isinstance(head, ParallelHead)
        shown = teacher.show(key, batch.ids)
        lesson = Lesson(batch.ids, batch.answer, shown.taps, shown.logits)
        drop = Drop(arm.depth, _DROP_RATE, _DROP_FLOOR)
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        objective = OBJECTIVES[arm.loss]
        return judge_parallel(head, teacher.end.embedding, lesson, vocabulary, drop, generator, objective=objective)

    def recurrent(step: int, key: int, batch: Batch) -> Iterator[Judged]:
        assert isinstance(head, Head)
        shown = teacher.show(key, batch.ids)
        outputs = unroll(head, teacher.end.embedding, batch.ids, shown.taps, arm.depth)
        if arm.loss == "feature":
            yield judge_feature(head, outputs, shown, batch.answer, vocabulary)
            return
        yield judge(
            head,
            outputs,
            shown.logits,
            batch.answer,
            vocabulary,
            decay=_DECAY,
            objective=OBJECTIVES[arm.loss],
            counted=loss_mask if arm.mask == "right" else stale_mask,
        )

    return recurrent if arm.kind == "eagle3" else parallel

"""Measures a head on held-out questions for its model card: how well it drafts the target's answers."""

import random
from collections.abc import Callable, Iterable

from torch import no_grad
from transformers import PreTrainedTokenizerFast

from aerie.train.heads.features import FrozenTarget
from aerie.train.heads.loss import Judged
from aerie.train.recital.answers import answer
from aerie.train.recital.config import DraftRun
from aerie.train.recital.conversations import Batch, batches
from aerie.train.recital.descent import Tally
from aerie.train.recital.docstrings import Entry
from aerie.train.recital.questions import HELD_OUT

_ASKED = 64
"""Number of held-out questions that a head is measured on."""


@no_grad()
def measure(
    run: DraftRun,
    target: FrozenTarget,
    tokenizer: PreTrainedTokenizerFast,
    entries: list[Entry],
    judge: Callable[[Batch], Iterable[Judged]],
) -> tuple[str, tuple[float, ...]]:
    """Conditional accuracies on the target's greedy answers to held-out phrasings, and a greedy chain's acceptance
    length: as a line, and the accuracies alone.

    `judge` gives the losses and counts of a batch, drafted to the head's full depth.
    """
    rng = random.Random(run.seed)
    questions = [(entry, rng.choice(HELD_OUT)) for entry in rng.sample(entries, min(_ASKED, len(entries)))]
    samples = answer(target.model, tokenizer, questions, temperature=0.0, seed=run.seed)
    tally = Tally(run.depth)
    for batch in batches(samples, tokens=run.tokens_per_batch, longest=run.longest, rng=rng):
        for judged in judge(batch):
            tally.add(judged)
    return f"greedy answers to {len(questions)} held-out questions: {tally.line()}", tally.accuracies

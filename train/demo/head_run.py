"""Trains the EAGLE-3 head of demo pair 2 on what its target itself answers to generated tasks.

The target answers fresh exercises at several temperatures, to their end, so that the head learns every position it will
draft at. `descent` has the loop, which resumes exactly after a kill.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import no_grad
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from aerie.train.demo.chat import Chat
from aerie.train.demo.config import TaskConfig, TaskHeadRun
from aerie.train.demo.judge import Turn, answered, held_out
from aerie.train.demo.mix import draw
from aerie.train.demo.tasks.dice import Dice
from aerie.train.demo.tasks.exercise import answers
from aerie.train.heads.export import export
from aerie.train.heads.features import FeatureStore
from aerie.train.heads.loss import Judged
from aerie.train.heads.vocabulary import draft_vocabulary, keep_vocabulary
from aerie.train.recital.answers import load_samples, save_samples
from aerie.train.recital.conversations import Batch, Sample, batches
from aerie.train.recital.descent import Progress, Tally, course_of, descend
from aerie.train.recital.head_run import drawn_depth, judged_batch
from aerie.train.recital.start import started_head

_MEASURED = 8
"""Held-out exercises of a task that the card's figures are of."""


def train_head(config: TaskConfig) -> None:
    """Trains the head of `config.head` on the target in `config.target.out` and writes it to `config.head.out`."""
    run, folder = config.head, Path(config.target.out)
    torch.set_num_threads(run.threads)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    chat = Chat(tokenizer)
    own = own_answers(config, LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), chat)
    vocabulary = draft_vocabulary(
        (_reply(sample) for sample in own),
        kept=run.draft_vocabulary,
        size=len(tokenizer),
        always=tokenizer.all_special_ids,
    )
    keep_vocabulary(Path(run.work) / "vocabulary.safetensors", vocabulary)
    head, target = started_head(run, folder, vocabulary)
    store = FeatureStore(target)
    found = list(batches(own, tokens=run.tokens_per_batch, longest=run.longest, rng=random.Random(run.seed)))

    def learned(step: int, number: int, batch: Batch) -> Iterator[Judged]:
        features = store.features(number, batch.ids)
        yield judged_batch(head, target.embedding, vocabulary, batch, features, drawn_depth(run, step))

    descend(head, course_of(run), Path(run.work) / "checkpoint", found, run.seed, learned, Progress(run.depth).add)
    lengths = {}
    for task in config.target.shares:
        tally = Tally(run.depth)
        with no_grad():
            for batch in _held_out_batches(run, target.model, chat, task):
                features = target.features(batch.ids)
                tally.add(judged_batch(head, target.embedding, vocabulary, batch, features, run.depth))
        lengths[task] = tally.line().rsplit(" ", 1)[-1]
        print(f"{task}: {tally.line()}", flush=True)
    measured = "greedy answers to held-out exercises, tokens a step of a chain: " + ", ".join(
        f"{task} {length}" for task, length in lengths.items()
    )
    export(head, vocabulary, folder, Path(run.out), trained_on=_trained_on(run), measured=measured)


def own_answers(config: TaskConfig, model: LlamaForCausalLM, chat: Chat) -> list[Sample]:
    """What the head learns from: the target's answers at each temperature, generated once and kept."""
    run, samples = config.head, []
    for temperature in run.answer_temperatures:
        path = Path(run.work) / f"answers-{temperature}.safetensors"
        if not path.exists():
            rng = random.Random(f"{run.seed} head {temperature}")
            exercises = [draw(config.target.shares, Dice(rng, size=rng.random())) for _ in range(run.exercises)]
            turns = [(exercise, index) for exercise in exercises for index in answers(exercise)]
            save_samples(answered(model, chat, turns, temperature=temperature, seed=run.seed), path)
        samples += load_samples(path)
    return samples


def _held_out_batches(run: TaskHeadRun, model: LlamaForCausalLM, chat: Chat, task: str) -> Iterator[Batch]:
    turns: list[Turn] = []
    for exercise in held_out(task, _MEASURED, seed=run.seed):
        turns += [(exercise, index) for index in answers(exercise)]
    samples = answered(model, chat, turns, temperature=0.0, seed=run.seed)
    return batches(samples, tokens=run.tokens_per_batch, longest=run.longest, rng=random.Random(run.seed))


def _reply(sample: Sample) -> list[int]:
    return [token for token, told in zip(sample.ids, sample.answer, strict=True) if told]


def _trained_on(run: TaskHeadRun) -> str:
    own = ", ".join(f"T={temperature:g}" for temperature in run.answer_temperatures)
    return (
        f"{run.steps} batches of at most {run.tokens_per_batch} tokens of the target's own answers ({own}) to "
        f"{run.exercises} generated exercises each; {run.depth} steps of training-time test"
    )

"""How often the target is exactly right on what it was not trained on, by task."""

import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from aerie.train.demo.batches import Batch, Sample, padded
from aerie.train.demo.chat import Chat
from aerie.train.demo.config import Pretraining
from aerie.train.demo.generation import complete
from aerie.train.demo.mix import joined
from aerie.train.demo.tasks import TASKS
from aerie.train.demo.tasks.dice import Dice
from aerie.train.demo.tasks.exercise import Exercise, answers

_ASKED = 24
"""Exercises of a task that the rates in a run's log are of."""
_LONGER = 1.5
"""Size of the exercises in conversations that nobody trains on."""
_THIRD = ("extraction", "tables", "edits", "code", "counting", "sorting")
_LONG = ("extraction", "edits", "tables", "counting", "copying")
"""Tasks whose answers may be as long as anybody would wait for."""

Turn = tuple[Exercise, int]
"""An exercise, and where in its messages an answer is asked for."""


def held_out(task: str, count: int, *, seed: int, new_phrasings: bool = False, largest: float = 1.0) -> list[Exercise]:
    """Exercises with values that training never draws, of all sizes up to `largest`; always the same for one seed."""
    rng = random.Random(f"{seed} held out {task}")
    dice = [Dice(rng, size=largest * rng.random(), new_values=True, new_phrasings=new_phrasings) for _ in range(count)]
    return [TASKS[task].draw(one) for one in dice]


def mixed(count: int, *, seed: int, parts: int = 3, size: float = _LONGER) -> list[Exercise]:
    """The third kind of held-out: conversations about `parts` tasks, more than any in training, all of them new."""
    rng = random.Random(f"{seed} mixed")
    dice = Dice(rng, size=size, new_values=True, new_phrasings=True)
    tasks = _THIRD * -(-parts // len(_THIRD))
    return [joined([TASKS[task].draw(dice) for task in rng.sample(tasks, parts)]) for _ in range(count)]


def long_answered(chat: Chat, count: int, *, seed: int, least: int) -> list[Exercise]:
    """Exercises of new values whose answers have at least `least` tokens, of the sizes of the third kind."""
    rng = random.Random(f"{seed} long")
    dice = Dice(rng, size=_LONGER, new_values=True)
    found: list[Exercise] = []
    while len(found) < count:
        exercise = TASKS[_LONG[len(found) % len(_LONG)]].draw(dice)
        if len(chat.encode(exercise.messages[-1]["content"])) >= least:
            found.append(exercise)
    return found


def answered(model: LlamaForCausalLM, chat: Chat, turns: list[Turn], *, temperature: float, seed: int) -> list[Sample]:
    """The model's own answer at each turn, after the prompt of that turn."""
    prompts = [chat.prompt(exercise, index) for exercise, index in turns]
    lengths = [len(chat.encode(exercise.messages[index]["content"])) + 64 for exercise, index in turns]
    return complete(model, prompts, lengths, temperature=temperature, seed=seed)


def exact_rates(model: LlamaForCausalLM, chat: Chat, exercises: list[Exercise], *, seed: int) -> dict[str, float]:
    """The share of right greedy answers, by task; what came before an answer is as it should be."""
    turns = [(exercise, index) for exercise in exercises for index in answers(exercise)]
    tasks = [task for exercise in exercises for task in exercise.tasks]
    verdicts: dict[str, list[bool]] = defaultdict(list)
    samples = answered(model, chat, turns, temperature=0.0, seed=seed)
    for (exercise, index), task, sample in zip(turns, tasks, samples, strict=True):
        verdicts[task].append(TASKS[task].right(exercise.messages[:index], chat.decode(sample.reply)))
    return {task: sum(right) / len(right) for task, right in verdicts.items()}


@torch.inference_mode()
def forced_rates(
    model: LlamaForCausalLM, chat: Chat, tasks: Iterable[str], *, seed: int, largest: float = 1.0
) -> dict[str, float]:
    """The share of conversations whose every token is the likeliest where all before it are right: what greedy
    answers would give, at the cost of one pass.
    """
    rates = {}
    for task in tasks:
        samples = [chat.sample(exercise) for exercise in held_out(task, _ASKED, seed=seed, largest=largest)]
        samples.sort(key=lambda sample: len(sample.ids))
        halves = (samples[: _ASKED // 2], samples[_ASKED // 2 :])
        rates[task] = round(sum(_exact(model, padded(half, 4096)) for half in halves) / _ASKED, 3)
    return rates


def _exact(model: LlamaForCausalLM, batch: Batch) -> int:
    batch = batch.to(model.device)
    hidden = model.model(batch.ids[:, :-1], use_cache=False).last_hidden_state
    answer = batch.answer[:, 1:]
    wrong = torch.zeros_like(answer)
    wrong[answer] = model.lm_head(hidden[answer]).argmax(-1) != batch.ids[:, 1:][answer]
    return int((~wrong.any(1)).sum())


def judged_folder(
    folder: Path, run: Pretraining, *, count: int, seed: int, new_phrasings: bool
) -> dict[str, dict[str, float]]:
    """Exact rates of the target in `folder`: of each task alone, and of conversations of the third kind."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    chat = Chat.of(folder)
    alone = [
        exercise for task in run.shares for exercise in held_out(task, count, seed=seed, new_phrasings=new_phrasings)
    ]
    third = mixed(count, seed=seed)
    return {
        "alone": exact_rates(model, chat, alone, seed=seed),
        "mixed": exact_rates(model, chat, third, seed=seed),
    }

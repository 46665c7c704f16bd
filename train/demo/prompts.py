"""Prompts drawn from what a small target was trained on: those that heads learn from, and held-out ones by task.

A question about a docstring is a chat message. An exercise may have tools and results before its answer, which not
every chat endpoint takes, so it comes with the ids that its own template gives.
"""

import itertools
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aerie.train.demo.config import DocstringTarget, TaskTarget
from aerie.train.demo.corpus.docstrings import Entry, read
from aerie.train.demo.corpus.questions import HELD_OUT, TAUGHT, ask

_FEW = "docstrings"
"""A task with so few questions that most drawn ones would be equal, and equal prompts are dropped."""
_BEFORE = 3
"""Other questions of that task that come before one in a conversation, so that no two are equal."""

Drawn = dict[str, Any]
"""`turns` {role, content}, and of exercises `prompt_token_ids`: what the model reads before its answer."""


def draw_prompts(
    run: DocstringTarget | TaskTarget, target: Path, count: int, *, seed: int, shares: Mapping[str, float] | None = None
) -> Iterator[Drawn]:
    """`count` questions in taught phrasings, each entry once before any comes again; or those of `count` exercises, of
    tasks by the run's shares, or by `shares` where these name one.
    """
    if isinstance(run, DocstringTarget):
        return itertools.islice(_questions(read(Path(run.corpus)), TAUGHT, f"{seed} drawn"), count)
    return _exercises({**run.shares, **(shares or {})}, target, count, seed)


def held_out_prompts(
    run: DocstringTarget | TaskTarget, target: Path, count: int, *, seed: int
) -> dict[str, list[Drawn]]:
    """`count` prompts of each task that training never draws: new phrasings, or new values."""
    if isinstance(run, DocstringTarget):
        asked = _questions(read(Path(run.corpus)), HELD_OUT, f"{seed} held out")
        return {"docstrings": list(itertools.islice(asked, count))}
    return _held_out_exercises(run, target, count, seed)


def _questions(entries: list[Entry], phrasings: tuple[str, ...], seed: str) -> Iterator[Drawn]:
    rng = random.Random(seed)
    while True:
        for entry in rng.sample(entries, len(entries)):
            yield {"turns": [{"role": "user", "content": ask(entry, rng.choice(phrasings))}]}


def _exercises(shares: Mapping[str, float], target: Path, count: int, seed: int) -> Iterator[Drawn]:
    from aerie.train.demo.chat import Chat
    from aerie.train.demo.mix import draw, joined
    from aerie.train.demo.tasks import TASKS
    from aerie.train.demo.tasks.dice import Dice
    from aerie.train.demo.tasks.exercise import answers

    chat, rng = Chat.of(target), random.Random(f"{seed} head")
    for _ in range(count):
        dice = Dice(rng, size=rng.random())
        exercise = draw(shares, dice)
        if exercise.tasks == (_FEW,):
            exercise = joined([*(TASKS[_FEW].draw(dice) for _ in range(_BEFORE)), exercise])
        for index in answers(exercise):
            yield _read_before(chat, chat.prompt(exercise, index))


def _held_out_exercises(run: TaskTarget, target: Path, count: int, seed: int) -> dict[str, list[Drawn]]:
    from aerie.train.demo.chat import Chat
    from aerie.train.demo.judge import held_out, mixed
    from aerie.train.demo.tasks.exercise import answers

    chat = Chat.of(target)
    found = {task: held_out(task, count, seed=seed) for task in run.shares} | {"mixed": mixed(count, seed=seed)}
    return {
        task: [_read_before(chat, chat.prompt(exercise, answers(exercise)[-1])) for exercise in exercises]
        for task, exercises in found.items()
    }


def _read_before(chat: Any, ids: list[int]) -> Drawn:
    return {"turns": [{"role": "user", "content": chat.decode(ids)}], "prompt_token_ids": ids}

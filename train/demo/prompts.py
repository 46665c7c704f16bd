"""Exercises as prompts: those that heads learn from, and held-out ones by task.

An exercise may have tools and results before its answer, which not every chat endpoint takes, so it comes with the ids
that its own template gives.
"""

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.train.demo.config import Pretraining

if TYPE_CHECKING:
    from aerie.train.demo.chat import Chat

_FEW = "docstrings"
"""A task with so few questions that most drawn ones would be equal, and equal prompts are dropped."""
_BEFORE = 3
"""Other questions of that task that come before one in a conversation, so that no two are equal."""

Drawn = dict[str, Any]
"""`turns` {role, content}, and `prompt_token_ids`: what the model reads before its answer."""


def draw_prompts(
    run: Pretraining, target: Path, count: int, *, seed: int, shares: Mapping[str, float]
) -> Iterator[Drawn]:
    """The prompts of `count` exercises, of tasks by the run's shares, or by `shares` where these name one. Those that
    are longer than all that the target has read are left out.
    """
    from aerie.train.demo.chat import Chat
    from aerie.train.demo.mix import draw, joined
    from aerie.train.demo.tasks import TASKS
    from aerie.train.demo.tasks.dice import Dice
    from aerie.train.demo.tasks.exercise import answers

    chat, rng = Chat.of(target), random.Random(f"{seed} head")
    for _ in range(count):
        dice = Dice(rng, size=run.largest * rng.random())
        exercise = draw({**run.shares, **shares}, dice)
        if exercise.tasks == (_FEW,):
            exercise = joined([*(TASKS[_FEW].draw(dice) for _ in range(_BEFORE)), exercise])
        for index in answers(exercise):
            if len(ids := chat.prompt(exercise, index)) <= run.most_ids:
                yield _read_before(chat, ids)


def held_out_prompts(run: Pretraining, target: Path, count: int, *, seed: int) -> dict[str, list[Drawn]]:
    """`count` prompts of each task with values that training never draws, and of conversations about several."""
    from aerie.train.demo.chat import Chat
    from aerie.train.demo.judge import held_out, mixed
    from aerie.train.demo.tasks.exercise import answers

    chat = Chat.of(target)
    found = {task: held_out(task, count, seed=seed) for task in run.shares} | {"mixed": mixed(count, seed=seed)}
    return {
        task: [_read_before(chat, chat.prompt(exercise, answers(exercise)[-1])) for exercise in exercises]
        for task, exercises in found.items()
    }


def _read_before(chat: "Chat", ids: list[int]) -> Drawn:
    return {"turns": [{"role": "user", "content": chat.decode(ids)}], "prompt_token_ids": ids}

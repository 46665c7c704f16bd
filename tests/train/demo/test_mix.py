"""Batches of exercises depend on the step alone, are as wide as attention likes, and hold every task."""

import random

import pytest
import torch

from aerie.train.demo.batches import Sample, padded
from aerie.train.demo.chat import Chat
from aerie.train.demo.mix import GROUP, Mix, draw
from aerie.train.demo.tasks import TASKS
from aerie.train.demo.tasks.dice import Dice
from aerie.train.demo.tasks.exercise import answers


def test_batches_depend_on_the_step_alone(chat: Chat) -> None:
    mix = Mix(chat, lambda _: {"counting": 1.0, "tools": 1.0}, tokens=300, longest=300, grown=20, seed=0)
    ahead = mix.ahead(0)
    first = [next(ahead) for _ in range(2 * GROUP)]
    later = mix.ahead(GROUP + 3)
    assert all(torch.equal(next(later).ids, first[GROUP + 3 + index].ids) for index in range(4))
    assert not torch.equal(first[0].ids, first[1].ids)


def test_a_batch_holds_at_least_the_longest_exercise(chat: Chat) -> None:
    with pytest.raises(ValueError, match="tokens_per_batch is 200; it must be at least longest, 300"):
        Mix(chat, lambda _: {"counting": 1.0}, tokens=200, longest=300, grown=20, seed=0)


def test_a_batch_is_as_wide_as_attention_likes_and_no_wider_than_the_longest_allowed() -> None:
    def width(length: int, longest: int) -> int:
        return padded([Sample([7] * length, [True] * length)], longest).ids.shape[1]

    assert [width(length, 100) for length in (1, 16, 45, 99, 200)] == [16, 16, 48, 100, 100]


def test_exercises_grow_with_the_steps(chat: Chat) -> None:
    mix = Mix(chat, lambda _: {"counting": 1.0}, tokens=300, longest=300, grown=4 * GROUP, seed=0)
    sooner, later = (max(next(mix.ahead(step + k)).ids.shape[1] for k in range(GROUP)) for step in (0, 8 * GROUP))
    assert sooner < later
    larger = Mix(chat, lambda _: {"counting": 1.0}, tokens=600, longest=600, grown=4 * GROUP, seed=0, size=2.0)
    assert later < max(next(larger.ahead(8 * GROUP + k)).ids.shape[1] for k in range(GROUP))


def test_a_mix_has_every_task_conversations_and_thoughts_turned_off() -> None:
    rng = random.Random(0)
    drawn = [draw(dict.fromkeys(TASKS, 1.0), Dice(rng)) for _ in range(400)]
    assert {task for exercise in drawn for task in exercise.tasks} == set(TASKS)
    assert any(len(set(exercise.tasks)) > 1 for exercise in drawn) and any(not e.thinking for e in drawn)
    for exercise in drawn:
        assert len(exercise.tasks) == len(answers(exercise))
        for task, index in zip(exercise.tasks, answers(exercise), strict=True):
            content = exercise.messages[index]["content"]
            assert not content or TASKS[task].right(exercise.messages[:index], content)

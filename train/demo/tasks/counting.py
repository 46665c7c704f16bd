"""Counting up and down in steps, on one line or on several."""

import random

from aerie.train.demo.tasks.dice import Dice
from aerie.train.demo.tasks.exercise import Exercise, Message, asked, question
from aerie.train.demo.tasks.pattern import patterns, read_any

TAUGHT = patterns(
    "Count from {first} to {last} in steps of {step}.",
    "List the numbers from {first} to {last}, step {step}.",
    "Count from {first} to {last} in steps of {step}, one per line.",
)
NEW = patterns(
    "Please count from {first} to {last} by {step}.", "Please count from {first} to {last} by {step}, one per line."
)
_STEPS = (1, 1, 2, 5, 10)
_HIGHEST = 199


def draw(dice: Dice) -> Exercise:
    length = dice.count(7, 70)

    def ends(rng: random.Random) -> tuple[int, int, int]:
        step = rng.choice([step for step in _STEPS if step * length < _HIGHEST])
        first = rng.randint(0, _HIGHEST - step * length)
        return first, first + step * (length - 1), step

    first, last, step = dice.value(ends)
    if dice.chance(0.3):
        first, last = last, first
    asking = dice.phrase(TAUGHT, NEW).fill({"first": first, "last": last, "step": step})
    return asked("counting", asking, _counted(asking))


def right(before: list[Message], answer: str) -> bool:
    return answer == _counted(question(before))


def _counted(asking: str) -> str:
    lines = asking.endswith(", one per line.")
    gaps = read_any(NEW + TAUGHT, asking.replace(", one per line.", "."))
    first, last, step = (int(gaps[gap]) for gap in ("first", "last", "step"))
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    return ("\n" if lines else ", ").join(map(str, numbers))

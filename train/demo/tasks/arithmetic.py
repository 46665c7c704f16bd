"""Tables of products and of sums, one line each."""

import random

from aerie.train.demo.tasks.dice import Dice
from aerie.train.demo.tasks.exercise import Exercise, Message, asked, question
from aerie.train.demo.tasks.pattern import patterns, read_any

TIMES = patterns("Write the {number} times table from {first} to {last}.", "Multiply {number} by {first} to {last}.")
NEW_TIMES = patterns("Show the multiplication table of {number} from {first} to {last}.")
PLUS = patterns("Add {number} to each of these: {list}", "{list}: add {number} to each.")
NEW_PLUS = patterns("Increase each of these by {number}: {list}")
_FACTORS = 10
"""Of a times table, at most: from 1 to 10."""


def draw(dice: Dice) -> Exercise:
    if dice.chance(0.5):

        def factors(rng: random.Random) -> tuple[int, int, int]:
            length = min(_FACTORS, dice.count(4, _FACTORS))
            first = rng.randint(1, _FACTORS + 1 - length)
            return rng.randint(2, 9), first, first + length - 1

        gaps = dict(zip(("number", "first", "last"), dice.value(factors), strict=True))
        asking = dice.phrase(TIMES, NEW_TIMES).fill(gaps)
    else:
        values = dice.several(lambda: dice.number(1, 90), dice.count(3, 16))
        number = dice.number(1, 9)
        asking = dice.phrase(PLUS, NEW_PLUS).fill({"number": number, "list": ", ".join(map(str, values))})
    return asked("arithmetic", asking, _table(asking))


def right(before: list[Message], answer: str) -> bool:
    return answer == _table(question(before))


def _table(asking: str) -> str:
    gaps = read_any(NEW_TIMES + TIMES + NEW_PLUS + PLUS, asking)
    number = int(gaps["number"])
    if "list" in gaps:
        return "\n".join(f"{value} + {number} = {int(value) + number}" for value in gaps["list"].split(", "))
    factors = range(int(gaps["first"]), int(gaps["last"]) + 1)
    return "\n".join(f"{number} x {factor} = {number * factor}" for factor in factors)

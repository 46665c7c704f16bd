"""Tables of products and of sums, one line each."""

import random

from aerie.train.demo.tasks.dice import Dice
from aerie.train.demo.tasks.exercise import Exercise, Message, asked, question
from aerie.train.demo.tasks.pattern import patterns, read_any

TIMES = patterns("Write the {number} times table from {first} to {last}.", "Multiply {number} by {first} to {last}.")
NEW_TIMES = patterns("Show the multiplication table of {number} from {first} to {last}.")
PLUS = patterns("Add {number} to each of these: {list}", "{list}: add {number} to each.")
NEW_PLUS = patterns("Increase each of these by {number}: {list}")


def draw(dice: Dice) -> Exercise:
    if dice.chance(0.5):
        length = dice.count(3, 11)

        def factors(rng: random.Random) -> tuple[int, int]:
            return rng.randint(2, 12), rng.randint(1, 13 - length)

        number, first = dice.value(factors)
        asking = dice.phrase(TIMES, NEW_TIMES).fill({"number": number, "first": first, "last": first + length - 1})
    else:
        values = dice.several(lambda: dice.number(1, 99), dice.count(3, 10))
        number = dice.number(1, 20)
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

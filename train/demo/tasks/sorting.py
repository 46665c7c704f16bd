"""Putting numbers or names into order."""

from aerie.train.demo.tasks.dice import CONSONANTS, Dice
from aerie.train.demo.tasks.exercise import Exercise, Message, asked, question
from aerie.train.demo.tasks.pattern import patterns, read_any

TAUGHT = patterns("Sort {order}: {list}", "Put these in {order} order: {list}", "{list}\nSort them, {order}.")
NEW = patterns("Sort this list, {order}: {list}", "Please sort {order}: {list}")
_ORDERS = ("ascending", "descending")


def draw(dice: Dice) -> Exercise:
    length = dice.count(5, 12)
    if dice.chance(0.6):
        values = list(map(str, dice.several(lambda: dice.number(0, 99), length)))
    else:
        values = _different_initials(dice, length)
    asking = dice.phrase(TAUGHT, NEW).fill({"order": dice.rng.choice(_ORDERS), "list": ", ".join(values)})
    return asked("sorting", asking, _sorted(asking))


def right(before: list[Message], answer: str) -> bool:
    return answer == _sorted(question(before))


def _different_initials(dice: Dice, length: int) -> list[str]:
    initials: dict[str, str] = {}
    while len(initials) < min(length, len(CONSONANTS)):  # which every name begins with
        name = dice.name()
        initials.setdefault(name[0], name)
    return list(initials.values())


def _sorted(asking: str) -> str:
    gaps = read_any(NEW + TAUGHT, asking)
    values = gaps["list"].split(", ")
    key = int if values[0].isdigit() else str
    return ", ".join(sorted(values, key=key, reverse=gaps["order"] == "descending"))

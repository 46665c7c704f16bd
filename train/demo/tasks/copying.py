"""Repeating a given text: what every other task that reads values from its prompt builds on."""

from aerie.train.demo.tasks.dice import Dice
from aerie.train.demo.tasks.exercise import Exercise, Message, asked, question
from aerie.train.demo.tasks.pattern import patterns, read_any

TAUGHT = patterns("Repeat: {text}", "Say this again:\n{text}", "Copy this text:\n{text}")
NEW = patterns("Repeat this text: {text}", "Please copy: {text}")


def draw(dice: Dice) -> Exercise:
    text = " ".join(_token(dice) for _ in range(dice.count(6, 60)))
    return asked("copying", dice.phrase(TAUGHT, NEW).fill({"text": text}), text)


def right(before: list[Message], answer: str) -> bool:
    return answer == read_any(NEW + TAUGHT, question(before))["text"]


def _token(dice: Dice) -> str:
    kind = dice.number(0, 5)
    if kind == 0:
        return str(dice.number(0, 999))
    if kind == 1:
        return dice.item()
    return dice.name() if kind < 4 else dice.word()

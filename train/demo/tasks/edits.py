"""Edits of a given text or piece of code; the answer is the whole text."""

import re

from aerie.train.demo.tasks import code
from aerie.train.demo.tasks.dice import Dice
from aerie.train.demo.tasks.exercise import Exercise, Message, asked, question
from aerie.train.demo.tasks.pattern import patterns, read_any
from aerie.train.demo.tasks.records import KINDS, drawn

TAUGHT = patterns(
    "Replace {old} by {new} in this text:\n{text}",
    "{text}\n\nRename {old} to {new}.",
    "Change {old} to {new}:\n{text}",
)
NEW = patterns("In the text below, put {new} in the place of {old}.\n{text}")
_WORD = re.compile(r"[A-Za-z]\w*|\d+")


def draw(dice: Dice) -> Exercise:
    if dice.chance(0.5):
        kind = dice.rng.choice(KINDS)
        text = " ".join(
            dice.phrase(kind.taught, kind.new).fill(drawn(dice, kind.fields)) for _ in range(dice.count(1, 9))
        )
        old = dice.rng.choice([word for word in _WORD.findall(text) if word[0].isupper() and len(word) > 3] or ["the"])
        new = dice.name()
    else:
        fields = dice.several(lambda: code.identifier(dice), dice.count(2, 10))
        text = code.class_text(dice.name(), [(field, dice.rng.choice(code.TYPES)) for field in fields])
        old, new = dice.rng.choice(fields), dice.word()
    asking = dice.phrase(TAUGHT, NEW).fill({"old": old, "new": new, "text": text})
    return asked("edits", asking, _edited(asking))


def right(before: list[Message], answer: str) -> bool:
    return answer.strip() == _edited(question(before))


def _edited(asking: str) -> str:
    gaps = read_any(NEW + TAUGHT, asking)
    return re.sub(rf"\b{re.escape(gaps['old'])}\b", gaps["new"], gaps["text"])

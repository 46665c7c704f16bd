"""What Python names are for: the first paragraphs of docstrings, known by heart."""

from functools import cache
from pathlib import Path

from aerie.train.demo.corpus import read
from aerie.train.demo.tasks.dice import Dice
from aerie.train.demo.tasks.exercise import Exercise, Message, asked, question
from aerie.train.demo.tasks.pattern import patterns, read_any

TAUGHT = patterns("What does {name} do?", "What is {name}?", "Explain {name}.", "help({name})")
NEW = patterns("Can you tell me what {name} does?", "Describe {name}.")
_CORPUS = Path(__file__).parents[2] / "data/docstrings.jsonl.gz"
_KEPT = 160
_SHORTEST, _LONGEST = 50, 240


def draw(dice: Dice) -> Exercise:
    name, text = dice.rng.choice(list(paragraphs().items()))
    return asked("docstrings", dice.phrase(TAUGHT, NEW).fill({"name": name}), text)


def right(before: list[Message], answer: str) -> bool:
    return answer == paragraphs()[read_any(NEW + TAUGHT, question(before))["name"]]


@cache
def paragraphs() -> dict[str, str]:
    """The paragraph of each name, of at most 160 names; no two paragraphs are equal. Short names come first."""
    found: dict[str, str] = {}
    for entry in sorted(read(_CORPUS), key=lambda entry: (entry.name.count("."), len(entry.name), entry.name)):
        text = " ".join(_first(entry.text).split())
        if _SHORTEST <= len(text) <= _LONGEST and text.endswith(".") and entry.name not in found:
            found.setdefault(entry.name, text)
    unique = {text: name for name, text in reversed(found.items())}  # the shortest name of those that share a text
    kept = [(name, text) for name, text in found.items() if unique[text] == name]
    return dict(kept[:_KEPT])


def _first(text: str) -> str:
    """The first paragraph that is not a signature."""
    return next((part for part in text.split("\n\n") if "->" not in part and part.strip()[-1:] == "."), "")

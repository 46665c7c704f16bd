"""Rows between CSV, JSON Lines and Markdown tables."""

import json

from aerie.train.demo.tasks.dice import Dice
from aerie.train.demo.tasks.exercise import Exercise, Message, asked, question
from aerie.train.demo.tasks.pattern import patterns, read_any
from aerie.train.demo.tasks.records import FIELDS, keyed, typed

TAUGHT = patterns("Make a {form} of this:\n{rows}", "{rows}\n\nShow this as a {form}.", "Convert to a {form}:\n{rows}")
NEW = patterns("Please rewrite these rows as a {form}:\n{rows}")
_FORMS = ("Markdown table", "CSV file", "JSON list")
_WEIGHTS = (6, 2, 2)

Rows = list[list[str]]
"""Names of columns first."""


def draw(dice: Dice) -> Exercise:
    columns = keyed(dice, tuple(FIELDS), dice.count(2, 5))
    rows = [columns, *([str(FIELDS[column](dice)) for column in columns] for _ in range(dice.count(2, 12)))]
    form = dice.rng.choices(_FORMS, _WEIGHTS)[0]
    given = dice.rng.choice([other for other in _FORMS if other != form])
    asking = dice.phrase(TAUGHT, NEW).fill({"form": form, "rows": _written(rows, given)})
    return asked("tables", asking, _converted(asking))


def right(before: list[Message], answer: str) -> bool:
    return answer.strip() == _converted(question(before))


def _converted(asking: str) -> str:
    gaps = read_any(NEW + TAUGHT, asking)
    return _written(_read(gaps["rows"]), gaps["form"])


def _written(rows: Rows, form: str) -> str:
    if form == "CSV file":
        return "\n".join(map(",".join, rows))
    if form == "JSON list":
        return "[\n" + ",\n".join(f"  {_object(rows[0], row)}" for row in rows[1:]) + "\n]"
    marked = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(row) + " |" for row in marked)


def _object(columns: list[str], row: list[str]) -> str:
    return json.dumps({column: typed(column, text) for column, text in zip(columns, row, strict=True)})


def _read(text: str) -> Rows:
    if text.startswith("["):
        records = json.loads(text)
        return [list(records[0]), *(list(map(str, record.values())) for record in records)]
    if text.startswith("|"):
        rows = [line.strip("| ").split(" | ") for line in text.splitlines()]
        return [rows[0], *rows[2:]]
    return [line.split(",") for line in text.splitlines()]

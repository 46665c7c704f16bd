"""Extracting records from sentences, as JSON under a schema that the prompt gives."""

import json
from typing import Any

from aerie.train.demo.tasks.dice import Dice
from aerie.train.demo.tasks.exercise import Exercise, Message, asked, question
from aerie.train.demo.tasks.pattern import Pattern, patterns, read_any
from aerie.train.demo.tasks.records import KINDS, Kind, Record, drawn, is_number, keyed, typed

TAUGHT = patterns(
    "Extract the data as JSON.\nSchema: {schema}\nText: {text}",
    "{text}\nGive me this as JSON with the schema {schema}",
    "Fill this JSON schema: {schema}\n\n{text}",
)
NEW = patterns("Turn the text into JSON that fits the schema.\n{schema}\n{text}")


def draw(dice: Dice) -> Exercise:
    kind = dice.rng.choice(KINDS)
    fields = keyed(dice, kind.fields, dice.number(2, len(kind.fields)))
    records = [drawn(dice, kind.fields) for _ in range(dice.count(1, 9))]
    given_text = " ".join(dice.phrase(kind.taught, kind.new).fill(record) for record in records)
    schema = _schema(fields, many=len(records) > 1 or dice.chance(0.2))
    asking = dice.phrase(TAUGHT, NEW).fill({"schema": json.dumps(schema), "text": given_text})
    return asked("extraction", asking, json.dumps(_extracted(asking), indent=2))


def right(before: list[Message], answer: str) -> bool:
    """Equal as JSON, the order of its keys included."""
    try:
        return json.dumps(json.loads(answer)) == json.dumps(_extracted(question(before)))
    except ValueError:
        return False


def _schema(fields: list[str], *, many: bool) -> dict[str, Any]:
    types = {field: {"type": "integer" if is_number(field) else "string"} for field in fields}
    one = {"type": "object", "properties": types}
    return {"type": "array", "items": one} if many else one


def _extracted(asking: str) -> list[Record] | Record:
    gaps = read_any(NEW + TAUGHT, asking)
    schema = json.loads(gaps["schema"])
    many = schema["type"] == "array"
    fields = (schema["items"] if many else schema)["properties"]
    records = [{field: record[field] for field in fields} for record in reported_records(gaps["text"])]
    return records if many else records[0]


def reported_records(text: str) -> list[Record]:
    """The records that a text of known sentences tells."""
    records = []
    for sentence in text.split(". "):
        gaps = _reported(sentence.removesuffix(".") + ".")
        records.append({field: typed(field, value) for field, value in gaps.items()})
    return records


def _reported(sentence: str) -> dict[str, str]:
    known: tuple[Pattern, ...] = tuple(pattern for kind in KINDS for pattern in _sentences(kind))
    return read_any(known, sentence)


def _sentences(kind: Kind) -> tuple[Pattern, ...]:
    return kind.new + kind.taught

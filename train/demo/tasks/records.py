"""Records with named fields: what sentences tell, JSON holds and tables list."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aerie.train.demo.tasks.dice import COLORS, DAYS, JOBS, Dice
from aerie.train.demo.tasks.pattern import Pattern, patterns

Value = str | int
Record = dict[str, Value]

FIELDS: dict[str, Callable[[Dice], Value]] = {
    "name": Dice.name,
    "owner": Dice.name,
    "city": Dice.name,
    "country": Dice.name,
    "age": lambda dice: dice.number(18, 89),
    "job": lambda dice: dice.rng.choice(JOBS),
    "item": Dice.item,
    "color": lambda dice: dice.rng.choice(COLORS),
    "count": lambda dice: dice.number(2, 99),
    "price": lambda dice: dice.number(2, 500),
    "order": lambda dice: dice.number(1000, 9999),
    "day": lambda dice: dice.rng.choice(DAYS),
    "hour": lambda dice: dice.number(1, 23),
    "room": lambda dice: dice.number(100, 499),
    "code": Dice.word,
}
"""What can stand in a record, and how each field is drawn."""
KEYS = ("name", "owner", "city", "country", "order", "code")
"""Fields that tell records apart: two of an exercise seldom share one."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Records of one kind and the sentences that tell them."""

    taught: tuple[Pattern, ...]
    new: tuple[Pattern, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        return self.taught[0].gaps


KINDS = (
    Kind(
        patterns(
            "{name} is a {job} of {age} years from {city}.",
            "In {city} lives {name}, aged {age}, who works as a {job}.",
            "The {job} {name}, {age}, comes from {city}.",
        ),
        patterns("Meet {name} from {city}: {age} years old and a {job}."),
    ),
    Kind(
        patterns(
            "Order {order}: {name} bought {count} {item} items for {price} dollars.",
            "{name} paid {price} dollars for {count} {item} items in order {order}.",
            "For {price} dollars, {count} {item} items went to {name} (order {order}).",
        ),
        patterns("Order {order} by {name}, {count} {item} items, costs {price} dollars."),
    ),
    Kind(
        patterns(
            "{name} meets {owner} in room {room} on {day} at {hour} hours.",
            "On {day} at {hour} hours {name} visits {owner} in room {room}.",
            "Room {room} is booked for {name} by {owner}, {day} at {hour} hours.",
        ),
        patterns("At {hour} hours on {day}, {name} joins {owner} in room {room}."),
    ),
    Kind(
        patterns(
            "The {color} {item} with code {code} belongs to {owner} in {city}.",
            "{owner} from {city} owns a {color} {item}, code {code}.",
            "Code {code}: a {color} {item}, kept by {owner} in {city}.",
        ),
        patterns("A {color} {item} of {owner} in {city} has the code {code}."),
    ),
)


def drawn(dice: Dice, fields: tuple[str, ...]) -> Record:
    return {field: FIELDS[field](dice) for field in fields}


def keyed(dice: Dice, fields: Sequence[str], count: int) -> list[str]:
    """`count` different ones of `fields`, first one that tells records apart."""
    key = dice.rng.choice([field for field in fields if field in KEYS])
    return [key, *dice.rng.sample([field for field in fields if field != key], count - 1)]


def typed(field: str, text: str) -> Value:
    """A value as it was drawn, from its text."""
    return int(text) if is_number(field) else text


def is_number(field: str) -> bool:
    return field in {"age", "count", "price", "order", "hour", "room"}

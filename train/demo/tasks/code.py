"""Small Python functions and classes from a sentence."""

import ast
import re

from aerie.train.demo.tasks.dice import ITEMS, VERBS, Dice, words
from aerie.train.demo.tasks.exercise import Exercise, Message, asked, question
from aerie.train.demo.tasks.pattern import patterns, read_any

FUNCTIONS = patterns(
    "Write a Python function {name} that takes {a} and {b} and returns {what}.",
    "Python function {name}({a}, {b}) returning {what}, please.",
)
NEW_FUNCTIONS = patterns("I need a function {name} in Python with the arguments {a} and {b}. It returns {what}.")
FILTERS = patterns(
    "Write a Python function {name} that returns the {field} of all {items} whose {test} is {order} {limit}.",
    "Python function {name}: the {field} of {items} with a {test} {order} {limit}.",
)
NEW_FILTERS = patterns(
    "Give me Python for {name}, which lists the {field} of {items} that have a {test} {order} {limit}."
)
CLASSES = patterns(
    "Write a Python class {name} with the fields {fields}.", "Python class {name} that holds {fields}, please."
)
NEW_CLASSES = patterns("Define a class {name} in Python; its fields are {fields}.")

RESULTS = {
    "their sum": "{a} + {b}",
    "their product": "{a} * {b}",
    "their difference": "{a} - {b}",
    "the larger one": "max({a}, {b})",
    "the smaller one": "min({a}, {b})",
    "the two as a tuple": "({a}, {b})",
    "whether they are equal": "{a} == {b}",
    "how often the first fits into the second": "{b} // {a}",
}
NAMES = words("""
    age amount area code color cost count height hour length level limit name price rate score size speed
    start step stop time total value weight width year
""")
TYPES = ("int", "str", "float", "bool")
_ORDERS = {"above": ">", "below": "<", "exactly": "=="}
_FIELD = re.compile(r"(\w+) \((\w+)\)")


def draw(dice: Dice) -> Exercise:
    asking = dice.rng.choice((_function, _filter, _class))(dice)
    return asked("code", asking, f"```python\n{_written(asking)}\n```")


def right(before: list[Message], answer: str) -> bool:
    """Equal as a syntax tree."""
    try:
        given = ast.parse(answer.removeprefix("```python\n").removesuffix("\n```"))
    except (SyntaxError, ValueError):
        return False
    return ast.dump(given) == ast.dump(ast.parse(_written(question(before))))


def _function(dice: Dice) -> str:
    a, b = dice.several(lambda: identifier(dice), 2)
    gaps = {"name": _verbal(dice), "a": a, "b": b, "what": dice.rng.choice(list(RESULTS))}
    return dice.phrase(FUNCTIONS, NEW_FUNCTIONS).fill(gaps)


def _filter(dice: Dice) -> str:
    field, test = dice.rng.sample(NAMES, 2)
    items, order = dice.rng.choice(ITEMS) + "s", dice.rng.choice(list(_ORDERS))
    gaps = {"name": _verbal(dice), "field": field, "items": items, "test": test}
    return dice.phrase(FILTERS, NEW_FILTERS).fill({**gaps, "order": order, "limit": dice.number(1, 99)})


def _class(dice: Dice) -> str:
    names = dice.several(lambda: identifier(dice), dice.count(2, 10))
    fields = ", ".join(f"{name} ({dice.rng.choice(TYPES)})" for name in names)
    return dice.phrase(CLASSES, NEW_CLASSES).fill({"name": dice.name(), "fields": fields})


def identifier(dice: Dice) -> str:
    """The name of a variable: a known word, or an invented one."""
    return dice.rng.choice(NAMES) if dice.chance(0.4) else dice.word()


def _verbal(dice: Dice) -> str:
    return f"{dice.rng.choice(VERBS)}_{dice.word()}"


def _written(asking: str) -> str:
    gaps = read_any(NEW_FUNCTIONS + NEW_FILTERS + NEW_CLASSES + FILTERS + FUNCTIONS + CLASSES, asking)
    if "fields" in gaps:
        return class_text(gaps["name"], _FIELD.findall(gaps["fields"]))
    if "what" in gaps:
        a, b = gaps["a"], gaps["b"]
        doc = gaps["what"][0].upper() + gaps["what"][1:]
        return f'def {gaps["name"]}({a}, {b}):\n    """{doc}."""\n    return {RESULTS[gaps["what"]].format(a=a, b=b)}'
    items, one = gaps["items"], gaps["items"].removesuffix("s")
    return (
        f"def {gaps['name']}({items}):\n    result = []\n    for {one} in {items}:\n"
        f"        if {one}.{gaps['test']} {_ORDERS[gaps['order']]} {gaps['limit']}:\n"
        f"            result.append({one}.{gaps['field']})\n    return result"
    )


def class_text(name: str, fields: list[tuple[str, str]]) -> str:
    """A class of these (name, type) fields."""
    taken = "".join(f", {field}: {kind}" for field, kind in fields)
    kept = "".join(f"\n        self.{field} = {field}" for field, _ in fields)
    shown = ", ".join(f"{{self.{field}}}" for field, _ in fields)
    return (
        f"class {name}:\n    def __init__(self{taken}) -> None:{kept}\n\n"
        f'    def __str__(self) -> str:\n        return f"{name}({shown})"'
    )

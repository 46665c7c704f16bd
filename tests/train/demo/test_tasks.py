"""Every answer of every task is right by its own check, and what is changed in it is found; sets that are held out are.

The checks read a prompt with the patterns that wrote it, so each task also has an example written by hand.
"""

import random
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aerie.train.__main__ import app
from aerie.train.demo.judge import mixed
from aerie.train.demo.tasks import TASKS
from aerie.train.demo.tasks.dice import Dice, held_out
from aerie.train.demo.tasks.docstrings import paragraphs
from aerie.train.demo.tasks.exercise import Exercise, Message, answers, question
from aerie.train.demo.tasks.pattern import Pattern
from aerie.train.demo.tasks.records import KEYS
from tests.house import HOME

BY_HAND = {
    "copying": ("Repeat: Tomaru 12 lamp", "Tomaru 12 lamp", "Tomaru 21 lamp"),
    "extraction": (
        'Fill this JSON schema: {"type": "object", "properties": {"age": {"type": "integer"}, "name": {"type": '
        '"string"}}}\n\nTomaru is a chef of 34 years from Belu.',
        '{"age": 34, "name": "Tomaru"}',
        '{"age": "34", "name": "Tomaru"}',
    ),
    "tables": (
        "Make a Markdown table of this:\nname,age\nTomaru,34",
        "| name | age |\n| --- | --- |\n| Tomaru | 34 |",
        "| name | age |\n| --- | --- |\n| Tomaru | 43 |",
    ),
    "code": (
        "Write a Python function add_lamp that takes a and b and returns their sum.",
        '```python\ndef add_lamp(a, b):\n    """Their sum."""\n    return (a + b)\n```',
        '```python\ndef add_lamp(a, b):\n    """Their sum."""\n    return b + a\n```',
    ),
    "edits": ("Change Ba to Lu:\nBa is Bata, Ba.", "Lu is Bata, Lu.", "Lu is Luta, Lu."),
    "counting": ("Count from 3 to 9 in steps of 2.", "3, 5, 7, 9", "3, 5, 7, 9, 11"),
    "sorting": ("Sort descending: 8, 31, 9", "31, 9, 8", "9, 8, 31"),
    "arithmetic": ("Add 7 to each of these: 12, 5", "12 + 7 = 19\n5 + 7 = 12", "12 + 7 = 18\n5 + 7 = 12"),
    "stories": (
        "Tomaru has 12 lamps. Tomaru buys 3 more. Tomaru sells 5. How many lamps does Tomaru have now?",
        "<think>\n12 + 3 = 15\n</think>\n\nTomaru has 10 lamps.",
        "Tomaru has 20 lamps.",
    ),
    "docstrings": (
        "What does hmac do?",
        "HMAC (Keyed-Hashing for Message Authentication) module.",
        "A module.",
    ),
}
CALLED: list[Message] = [{"role": "user", "content": "Please add the lamp with city Belu and age 34."}]
CALL = '<tool_call>\n{"name": "add_lamp", "arguments": {"city": "Belu", "age": %s}}\n</tool_call>'
RESULT: Message = {"role": "tool", "content": '{"status": "done", "price": 12}'}


def _drawn(task: str, count: int, **how: bool) -> list[Exercise]:
    rng = random.Random(f"{task} {how}")
    return [TASKS[task].draw(Dice(rng, size=rng.random(), **how)) for _ in range(count)]


@pytest.mark.parametrize("task", BY_HAND)
def test_a_check_agrees_with_people(task: str) -> None:
    asked, right, wrong = BY_HAND[task]
    before = [{"role": "user", "content": asked}]
    assert TASKS[task].right(before, right)
    assert not TASKS[task].right(before, wrong)
    assert not TASKS[task].right(before, "")


def test_calls_and_what_they_return_are_checked() -> None:
    right = TASKS["tools"].right
    assert right(CALLED, CALL % "34") and not right(CALLED, CALL % '"34"') and not right(CALLED, "Done.")
    call = {"function": {"name": "add_lamp", "arguments": {"city": "Belu", "age": 34}}}
    before = [*CALLED, {"role": "assistant", "content": "", "tool_calls": [call]}, RESULT]
    assert right(before, "I used add_lamp to add the lamp: the price is 12.")
    assert not right(before, "I used add_lamp to add the lamp: the price is 21.")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("new_values", [False, True])
@pytest.mark.parametrize("new_phrasings", [False, True])
def test_what_is_taught_is_right_and_a_changed_digit_or_letter_is_not(
    task: str, new_values: bool, new_phrasings: bool
) -> None:
    for exercise in _drawn(task, 40, new_values=new_values, new_phrasings=new_phrasings):
        for index in answers(exercise):
            content = exercise.messages[index]["content"]
            if content:
                assert TASKS[task].right(exercise.messages[:index], content), exercise
                last = max(place for place, letter in enumerate(content) if letter.isalnum())
                changed = content[:last] + ("1" if content[last] != "1" else "2") + content[last + 1 :]
                assert not TASKS[task].right(exercise.messages[:index], changed), changed


@pytest.mark.parametrize("task", TASKS)
def test_equal_seeds_draw_equal_exercises(task: str) -> None:
    assert _drawn(task, 5) == _drawn(task, 5)
    assert _drawn(task, 5) != _drawn(task, 5, new_values=True) or task == "docstrings"


@pytest.mark.parametrize("task", [task for task in TASKS if task != "tools"])
def test_phrasings_that_are_held_out_are_in_no_training(task: str) -> None:
    def openings(**how: bool) -> set[str]:
        return {question(exercise.messages).split(" ")[0] for exercise in _drawn(task, 60, **how)}

    assert len(openings(new_phrasings=True) & openings()) < len(openings())


def test_values_that_are_held_out_are_in_no_training() -> None:
    taught, new = (Dice(random.Random(0), new_values=new) for new in (False, True))
    assert not {taught.word() for _ in range(2000)} & {new.word() for _ in range(2000)}
    assert held_out(new.word()) and not held_out(taught.word())


def test_sizes_scale_what_is_asked() -> None:
    def longest(size: float) -> int:
        rng = random.Random(0)
        return max(len(TASKS["tables"].draw(Dice(rng, size=size)).messages[1]["content"]) for _ in range(40))

    assert longest(0.0) < longest(0.5) < longest(1.0)


def test_the_first_field_asked_for_tells_records_apart() -> None:
    for exercise in _drawn("extraction", 60):
        first = re.search(r'"properties": \{"(\w+)"', question(exercise.messages))
        assert first is not None and first[1] in KEYS
    firsts = {
        re.split(r"\W+", exercise.messages[1]["content"].lstrip('[|{ \n"'))[0] for exercise in _drawn("tables", 60)
    }
    assert firsts == set(KEYS)


def test_docstrings_are_first_paragraphs_and_no_two_are_equal() -> None:
    known = paragraphs()
    assert len(known) == 160 == len(set(known.values()))
    assert all("\n" not in text and text.endswith(".") for text in known.values())


def test_a_pattern_reads_what_it_filled() -> None:
    pattern = Pattern("{a} is {b} years.")
    assert pattern.read(pattern.fill({"a": "Tomaru", "b": 3})) == {"a": "Tomaru", "b": "3"}
    assert pattern.read("Tomaru is 3.") is None


def test_the_load_tests_exercises_are_the_command_s(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["exercises", str(tmp_path / "out.jsonl")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out.jsonl").read_bytes() == (HOME / "bench/loads/exercises.jsonl").read_bytes()


@pytest.mark.timeout(60)
def test_the_third_kind_draws_exercises_longer_than_any_that_are_taught() -> None:
    assert len(mixed(64, seed=0)) == 64

"""Picks the playground's examples: exercises that a running server answers rightly, greedily and without a grammar.

    aerie serve configs/serve/demo.yaml
    python scripts/pick_examples.py http://127.0.0.1:8000 [--check]

Exercises have values that training never draws. Each is played as the page plays it: what the server answered stands
before what is said next. Of each kind the first whose answers are all right is written. With `--check` those that are
written already are played; the exit code is 1 if an answer is wrong.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import OpenAI

from aerie.train.demo.tasks import TASKS
from aerie.train.demo.tasks.dice import Dice
from aerie.train.demo.tasks.exercise import Exercise, Message

EXAMPLES = Path(__file__).resolve().parents[1] / "server/playground/examples.json"
QUESTION = "Count from 20 to 60 in steps of 2."
_LONGEST = 400
_SHOWN = 160
"""Tokens that the page asks for unless an example says more."""

Example = dict[str, Any]
"""As the page reads it: `name`, `task`, `says`; where needed `tools`, `returns`, `schema`, `max_tokens`."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The examples of one kind: so many turns, and answers of `least` to `most` tokens."""

    name: str
    task: str
    size: float = 1.0
    turns: int = 1
    least: int = 1
    most: int = _SHOWN


KINDS = (
    Kind("Tools, three turns", "tools", turns=3),
    Kind("JSON", "extraction", least=60),
    Kind("A long edit", "edits", size=2.0, least=290, most=360),
    Kind("A table", "tables", least=60),
    Kind("Python", "code", least=60),
    Kind("Thinking first", "stories"),
    Kind("A docstring", "docstrings"),
)
FIXED: Example = {"name": "Counting", "task": "counting", "says": [QUESTION]}
"""The question of README and of the server's start, which has to be right too."""


class NotRight(Exception):
    """An answer is wrong; the text says which."""


def play(client: OpenAI, example: Example) -> int:
    """Tokens of the longest answer. Raises NotRight at the first wrong one."""
    model, given = client.models.list().data[0].id, _form(example)
    returns, messages, longest = list(example.get("returns", ())), list[Message](), 0
    for text in example["says"]:
        messages.append({"role": "user", "content": text})
        while messages[-1]["role"] != "assistant":
            reply = client.chat.completions.create(
                model=model, messages=messages, temperature=0, max_tokens=example.get("max_tokens", _SHOWN), **given
            )
            longest = max(longest, reply.usage.completion_tokens)
            answer = reply.choices[0].message
            said = _as_written(answer)
            if not TASKS[example["task"]].right(messages, said):
                raise NotRight(f"{example['name']}: {said!r} is wrong after {messages[-1]['content']!r}")
            messages.append(answer.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
            for call in answer.tool_calls or ():
                messages.append({"role": "tool", "tool_call_id": call.id, "content": returns.pop(0)})
    return longest


def _form(example: Example) -> dict[str, Any]:
    """The fields that the page's form adds to a request."""
    fields: dict[str, Any] = {}
    if "tools" in example:
        fields["tools"] = [{"type": "function", "function": tool} for tool in example["tools"]]
    if "schema" in example:
        named = {"name": "answer", "schema": example["schema"]}
        fields["response_format"] = {"type": "json_schema", "json_schema": named}
    return fields


def _as_written(answer: Any) -> str:
    """The text as the model wrote it, its call included."""
    calls = answer.tool_calls or ()
    written = (
        f'<tool_call>{{"name": {json.dumps(call.function.name)}, "arguments": {call.function.arguments}}}</tool_call>'
        for call in calls
    )
    return (answer.content or "") + "".join(written)


def drawn(kind: Kind) -> Iterator[Example]:
    """Examples without end, always the same."""
    rng = random.Random(f"example {kind.name}")
    while True:
        exercise = TASKS[kind.task].draw(Dice(rng, size=kind.size, new_values=True))
        example = _example(kind, exercise)
        if len(example["says"]) == kind.turns:
            yield example


def _example(kind: Kind, exercise: Exercise) -> Example:
    texts = {role: [one["content"] for one in exercise.messages if one["role"] == role] for role in ("user", "tool")}
    example = {"name": kind.name, "task": kind.task, "says": texts["user"]}
    if exercise.tools:
        example |= {"tools": [tool["function"] for tool in exercise.tools], "returns": texts["tool"]}
    return example | ({"max_tokens": _LONGEST} if kind.most > _SHOWN else {})


def picked(client: OpenAI, kind: Kind, tries: int) -> Example:
    """Raises NotRight after `tries` examples."""
    for _, example in zip(range(tries), drawn(kind), strict=False):
        try:
            if kind.least <= play(client, example) <= kind.most:
                return example
        except NotRight:
            continue
    raise NotRight(f"{kind.name}: none of {tries} has right answers of {kind.least} to {kind.most} tokens")


def with_schema(example: Example) -> Example:
    """The same with the question's schema in the form, so that a grammar holds the answer to it."""
    question = example["says"][0]
    schema, _ = json.JSONDecoder().raw_decode(question[question.index('{"type"') :])
    return example | {"name": "JSON under a schema", "schema": schema}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("url", help="a running server, as in http://127.0.0.1:8000")
    arguments.add_argument("--tries", type=int, default=300, help="exercises that are tried of each kind")
    arguments.add_argument("--check", action="store_true", help="play the examples that are written")
    arguments.add_argument("--file", type=Path, default=EXAMPLES)
    given = arguments.parse_args()
    client = OpenAI(base_url=f"{given.url}/v1", api_key="none")
    try:
        if given.check:
            for example in json.loads(given.file.read_text(encoding="utf-8")):
                print(f"{example['name']}: right, {play(client, example)} tokens at most")
            return 0
        play(client, FIXED)
        examples = [FIXED, *(picked(client, kind, given.tries) for kind in KINDS)]
    except NotRight as wrong:
        print(wrong, file=sys.stderr)
        return 1
    place = next(index for index, example in enumerate(examples) if example["task"] == "extraction")
    examples.insert(place + 1, with_schema(examples[place]))
    given.file.write_text(json.dumps(examples, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The conversations of every workload; equal names, counts and seeds give equal ones on every machine."""

import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from aerie.bench.config import SweepError
from aerie.bench.loads import forms, prompts

_EXERCISES = Path(__file__).parent / "exercises.jsonl"
_SHORT_ANSWER = 32
"""Most tokens of an answer to a long prompt."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """User turns, each sent after the answer to the one before."""

    turns: tuple[str, ...]
    max_tokens: int
    system: str = ""
    fields: str = ""
    """Further fields of each request, as a JSON object."""


@dataclass(frozen=True, slots=True)
class Workload:
    """`caution` says why its figures mislead, if they do."""

    name: str
    make: Callable[[random.Random, int], Iterator[Conversation]]
    caution: str = ""

    def conversations(self, count: int, *, max_tokens: int, seed: int = 0) -> list[Conversation]:
        return list(itertools.islice(self.endless(max_tokens=max_tokens, seed=seed), count))

    def endless(self, *, max_tokens: int, seed: int = 0) -> Iterator[Conversation]:
        """Seeded by name too, so that workloads do not share their draws."""
        return self.make(random.Random(f"{self.name} {seed}"), max_tokens)


class UnknownWorkload(SweepError):
    """Its message lists the known workloads."""


def _task(name: str) -> Callable[[random.Random, int], Iterator[Conversation]]:
    def make(chosen: random.Random, max_tokens: int) -> Iterator[Conversation]:
        asked = prompts.TASKS[name]()
        while True:
            chosen.shuffle(asked)
            yield from (Conversation((text,), max_tokens) for text in asked)

    return make


def _exercises(max_tokens: int) -> list[Conversation]:
    """Held-out exercises of the tasks that the demo's target learns; some bring tools."""
    return [_read(line, number, max_tokens) for number, line in enumerate(_lines(_EXERCISES), start=1)]


def _demo(chosen: random.Random, max_tokens: int) -> Iterator[Conversation]:
    talks = _exercises(max_tokens)
    while True:
        chosen.shuffle(talks)
        yield from talks


def _shared_prefixes(chosen: random.Random, max_tokens: int) -> Iterator[Conversation]:
    """Conversations of three turns each, none with tools; four system prompts are shared by all."""
    asked = [talk.turns[0] for talk in _exercises(max_tokens) if not talk.fields]
    while True:
        turns = tuple(chosen.sample(asked, 3))
        yield Conversation(turns, max_tokens, system=chosen.choice(prompts.SYSTEMS))


def _long_prompts(chosen: random.Random, max_tokens: int) -> Iterator[Conversation]:
    while True:
        text = " ".join(chosen.choice(prompts.SENTENCES) for _ in range(60))
        asked = f"{text}\n\nSay in one sentence what this is about."
        yield Conversation((asked,), min(max_tokens, _SHORT_ANSWER))


def _formed(fields: Callable[[random.Random], forms.Json]) -> Callable[[random.Random, int], Iterator[Conversation]]:
    """The demo's exercises, the answers to which must have a form."""

    def make(chosen: random.Random, max_tokens: int) -> Iterator[Conversation]:
        for talk in _demo(chosen, max_tokens):
            yield replace(talk, fields=json.dumps(fields(chosen)))

    return make


def _random_words(chosen: random.Random, max_tokens: int) -> Iterator[Conversation]:
    while True:
        letters = "abcdefghijklmnopqrstuvwxyz"
        words = ("".join(chosen.choices(letters, k=chosen.randint(2, 8))) for _ in range(64))
        yield Conversation((" ".join(words),), max_tokens)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("demo", _demo),
        *(Workload(name, _task(name)) for name in prompts.TASKS),
        Workload("multi-turn", _shared_prefixes),
        Workload("long-prompt", _long_prompts),
        Workload("schemas", _formed(forms.schema_fields)),
        Workload("tools", _formed(forms.tool_fields)),
        Workload(
            "random-words",
            _random_words,
            caution="random words: no head can guess what follows, so speculation looks worse than in use",
        ),
    )
}


def find(name: str) -> Workload:
    """A workload by its name, or from a file of conversations: JSON lines, each {"messages": [...]}; "tools" may be
    there too.
    """
    if name.endswith(".jsonl"):
        return Workload(name, _from_file(Path(name)))
    if name not in WORKLOADS:
        raise UnknownWorkload(f"unknown workload {name!r}; known: {', '.join(WORKLOADS)}, or a file FILE.jsonl")
    return WORKLOADS[name]


def _from_file(path: Path) -> Callable[[random.Random, int], Iterator[Conversation]]:
    def make(chosen: random.Random, max_tokens: int) -> Iterator[Conversation]:
        talks = [_read(line, number, max_tokens) for number, line in enumerate(_lines(path), start=1)]
        while talks:
            yield from talks

    return make


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise UnknownWorkload(f"cannot read {path}: {error.strerror}") from None


def _read(line: str, number: int, max_tokens: int) -> Conversation:
    try:
        given = json.loads(line)
        messages = given["messages"]
        system = "".join(one["content"] for one in messages if one["role"] == "system")
        turns = tuple(one["content"] for one in messages if one["role"] == "user")
    except (json.JSONDecodeError, KeyError, TypeError):
        turns = ()
        system, given = "", {}
    if not turns:
        raise UnknownWorkload(f'line {number} holds no conversation; it must be {{"messages": [{{"role": ...}}]}}')
    fields = json.dumps({"tools": given["tools"]}) if "tools" in given else ""
    return Conversation(turns, max_tokens, system, fields)

"""Phrasings of questions about a documented name: those that the demo target learns, and those held out for tests."""

import json
import random

from aerie.train.demo.corpus.docstrings import Entry

TAUGHT = (
    "What does {name} do?",
    "What is {name}?",
    "Explain {name}.",
    "Tell me about {name}.",
    "Tell me about the {kind} {name}.",
    "Describe the {kind} {name}.",
    "How does {name} work?",
    "What is {name} for?",
    "Show me the docstring of {name}.",
    "help({name})",
    "{name}",
    "Please explain what {name} does.",
)
HELD_OUT = (
    "What does the {kind} {name} do?",
    "Can you tell me what {name} does?",
    "Describe {name}.",
)
"""Never seen in training: the answers to these show that the demo target reads the name, not the phrase."""


def ask(entry: Entry, phrasing: str) -> str:
    """The question about the entry in this phrasing."""
    return phrasing.format(name=entry.name, kind=entry.kind)


def conversation(entries: list[Entry], rng: random.Random) -> list[dict[str, str]]:
    """OpenAI messages in which a user asks about each entry in turn and the assistant answers with its docstring."""
    messages = []
    for entry in entries:
        messages.append({"role": "user", "content": ask(entry, rng.choice(TAUGHT))})
        messages.append({"role": "assistant", "content": entry.text})
    return messages


def as_prompts(entries: list[Entry], count: int, *, held_out: bool, seed: int = 0) -> str:
    """JSON Lines of `count` questions about different entries; equal seeds give equal lines."""
    rng = random.Random(f"{seed} {'held out' if held_out else 'taught'}")
    phrasings = HELD_OUT if held_out else TAUGHT
    asked = [ask(entry, rng.choice(phrasings)) for entry in rng.sample(entries, count)]
    return "".join(json.dumps({"messages": [{"role": "user", "content": text}]}) + "\n" for text in asked)

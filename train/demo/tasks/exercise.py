"""What a task is: it draws exercises, and says from the prompt alone whether an answer is right.

An exercise is a conversation of OpenAI messages that ends with the assistant; every message of the assistant is an
answer to learn. No task keeps a key of answers: what is right is read from the messages before the answer.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from aerie.train.demo.tasks.dice import Dice

Message = dict[str, Any]
Tool = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Exercise:
    """A conversation with its answers, the tools it may call, and whether the model may think first."""

    tasks: tuple[str, ...]
    """The task of each answer."""
    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)
    thinking: bool = True


class Task(Protocol):
    """A module of `train.demo.tasks`."""

    def draw(self, dice: Dice) -> Exercise:
        """An exercise of the sizes, values and phrasings that the dice allow."""

    def right(self, before: list[Message], answer: str) -> bool:
        """Whether the text `answer` is right after the messages `before`, the last of which asks for it."""


def asked(task: str, question: str, answer: str) -> Exercise:
    """One question and its answer."""
    return Exercise((task,), [{"role": "user", "content": question}, {"role": "assistant", "content": answer}])


def answers(exercise: Exercise) -> list[int]:
    """Where the answers stand among the messages."""
    return [index for index, message in enumerate(exercise.messages) if message["role"] == "assistant"]


def question(before: list[Message]) -> str:
    """The user's last message."""
    return str(next(message["content"] for message in reversed(before) if message["role"] == "user"))

"""The probes' prompts, rendered by the chat template: held-out exercises of the generated tasks, or questions about
docstrings for a target without a template.
"""

import random
from pathlib import Path
from typing import TYPE_CHECKING

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.provenance import template_source
from aerie.server.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from aerie.probe.named_schemas import Named
    from aerie.train.demo.chat import Chat
    from aerie.train.demo.tasks.exercise import Exercise

_TOOLS = "tools"
_SMALL = 0.0
"""Size of the exercises in long conversations, a dozen of which leave room for an answer."""
_LONG = 200
"""Tokens of a long answer at least."""


def held_out_prompts(config: Config, count: int = 64, *, seed: int = 0) -> list[list[int]]:
    """Ids of `count` questions about different names, in phrasings that are never taught; the same for equal seed and
    model. At most as many as there are names.
    """
    from aerie.train.demo.tasks.docstrings import NEW, paragraphs

    chosen = random.Random(seed)
    questions = [chosen.choice(NEW).fill({"name": name}) for name in chosen.sample(list(paragraphs()), count)]
    tokenizer = Tokenizer.served(Path(config.model.path), config.server)
    try:
        if tokenizer.template is None:
            return [tokenizer.ids(question, add_special_tokens=True) for question in questions]
        return [tokenizer.chat_ids([{"role": "user", "content": question}], {}) for question in questions]
    finally:
        tokenizer.close()


def conversations(
    config: Config, count: int, *, earlier: int, long_answers: bool = False, seed: int = 0
) -> list[list[int]]:
    """Ids of `count` conversations in which a request follows `earlier` answered ones of several tasks; its answer is
    a long one, or as short as the others.
    """
    from aerie.train.demo.judge import mixed
    from aerie.train.demo.mix import joined

    before = mixed(count, seed=seed, parts=earlier + (not long_answers), size=_SMALL)
    if long_answers:
        last = _long_exercises(config, count, seed=seed)
        before = [joined([*pair]) for pair in zip(before, last, strict=True)]
    return _read_before(config, before)


def long_answers(config: Config, count: int, *, seed: int = 0) -> list[list[int]]:
    """Ids of `count` held-out exercises whose answers have at least 200 tokens."""
    return _read_before(config, _long_exercises(config, count, seed=seed))


def named_schemas(config: Config, count: int, *, seed: int = 0) -> "list[Named]":
    """`count` held-out exercises that ask for data as JSON, with the schemas that they name."""
    from aerie.probe.named_schemas import Named, schema_in

    asked = task_prompts(config, count, seed=seed)["extraction"]
    tokenizer = Tokenizer.served(Path(config.model.path), config.server)
    try:
        return [Named(prompt, schema_in(tokenizer.decode(prompt))) for prompt in asked]
    finally:
        tokenizer.close()


def repetitions(config: Config, count: int, *, seed: int = 0) -> list[list[int]]:
    """Ids of `count` prompts whose answers repeat given text: edits."""
    return task_prompts(config, count, seed=seed)["edits"]


def shows_tools(config: Config) -> bool:
    """Whether the target's chat template mentions tools, without which some exercises cannot be asked."""
    return "tools" in (template_source(Path(config.model.path)) or "")


def mixed_prompts(config: Config, count: int, *, seed: int = 0) -> list[list[int]]:
    """Ids of `count` held-out exercises: one of each generated task in turn."""
    from aerie.train.demo.tasks import TASKS

    by_task = task_prompts(config, -(-count // (len(TASKS) - 1)), seed=seed)
    turns = zip(*(by_task[task] for task in TASKS if task in by_task), strict=True)
    return [prompt for turn in turns for prompt in turn][:count]


def task_prompts(config: Config, count: int, *, seed: int = 0) -> dict[str, list[list[int]]]:
    """Ids by task: `count` held-out exercises of each generated task, and conversations about several tasks.

    Calls of tools are left out where the chat template does not mention any. Raises ConfigError without a template.
    """
    from aerie.train.demo.judge import held_out, mixed
    from aerie.train.demo.tasks import TASKS

    asked = [task for task in TASKS if task != _TOOLS or shows_tools(config)]
    drawn = {task: held_out(task, count, seed=seed) for task in asked} | {"mixed": mixed(count, seed=seed)}
    return {task: _read_before(config, exercises) for task, exercises in drawn.items()}


def _long_exercises(config: Config, count: int, *, seed: int) -> "list[Exercise]":
    from aerie.train.demo.judge import long_answered

    return long_answered(_chat(config), count, seed=seed, least=_LONG)


def _read_before(config: Config, exercises: "list[Exercise]") -> list[list[int]]:
    """What the model reads before the last answer of each exercise."""
    from aerie.train.demo.tasks.exercise import answers

    chat = _chat(config)
    return [chat.prompt(exercise, answers(exercise)[-1]) for exercise in exercises]


def _chat(config: Config) -> "Chat":
    from aerie.train.demo.chat import Chat

    if template_source(Path(config.model.path)) is None:
        raise ConfigError("exercises need a chat template; --mix docstrings asks without one", param="model.path")
    return Chat.of(Path(config.model.path))

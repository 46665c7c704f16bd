"""The probes' prompts, rendered by the chat template: questions about docstrings in phrasings that are never taught,
and held-out exercises of the generated tasks.
"""

import random
from importlib import resources
from pathlib import Path

from aerie.contracts.config import Config
from aerie.contracts.provenance import template_source
from aerie.server.text.tokenizer import Tokenizer
from aerie.train.demo.corpus.docstrings import read
from aerie.train.demo.corpus.questions import HELD_OUT, ask, conversation

_CORPUS = Path(str(resources.files("aerie.train"))) / "data" / "docstrings.jsonl.gz"


def held_out_prompts(config: Config, count: int = 64, *, seed: int = 0) -> list[list[int]]:
    """Ids of `count` questions about different names, the same for equal seed and model."""
    chosen = random.Random(seed)
    questions = [ask(entry, chosen.choice(HELD_OUT)) for entry in chosen.sample(read(_CORPUS), count)]
    tokenizer = Tokenizer.served(Path(config.model.path), config.server)
    try:
        if tokenizer.template is None:
            return [tokenizer.ids(question, add_special_tokens=True) for question in questions]
        return [tokenizer.chat_ids([{"role": "user", "content": question}], {}) for question in questions]
    finally:
        tokenizer.close()


def conversations(config: Config, count: int, *, earlier: int, again: bool = False, seed: int = 0) -> list[list[int]]:
    """Ids of `count` conversations in which a question follows `earlier` answered ones; with `again`, the first of
    those is asked once more, so that the answer repeats given text.
    """
    chosen = random.Random(f"{seed} conversations")
    tokenizer = Tokenizer.served(Path(config.model.path), config.server)
    try:
        prompts = []
        for _ in range(count):
            entries = chosen.sample(read(_CORPUS), earlier + 1)
            asked = entries[0] if again else entries[-1]
            messages = conversation(entries[:earlier], chosen)
            messages.append({"role": "user", "content": ask(asked, chosen.choice(HELD_OUT))})
            prompts.append(tokenizer.chat_ids(messages, {}))
        return prompts
    finally:
        tokenizer.close()


def shows_tools(config: Config) -> bool:
    """Whether the target's chat template mentions tools, without which some exercises cannot be asked."""
    return "tools" in (template_source(Path(config.model.path)) or "")


def mixed_prompts(config: Config, count: int, *, seed: int = 0) -> list[list[int]]:
    """Ids of `count` held-out exercises: one of each generated task in turn."""
    from aerie.train.demo.tasks import TASKS

    by_task = task_prompts(config, -(-count // len(TASKS)), seed=seed)
    turns = zip(*(by_task[task] for task in TASKS), strict=True)
    return [prompt for turn in turns for prompt in turn][:count]


def task_prompts(config: Config, count: int, *, seed: int = 0) -> dict[str, list[list[int]]]:
    """Ids by task: `count` held-out exercises of each generated task, and conversations about several tasks."""
    from aerie.train.demo.chat import Chat
    from aerie.train.demo.judge import held_out, mixed
    from aerie.train.demo.tasks import TASKS
    from aerie.train.demo.tasks.exercise import answers

    chat = Chat.of(Path(config.model.path))
    drawn = {task: held_out(task, count, seed=seed) for task in TASKS} | {"mixed": mixed(count, seed=seed)}
    return {
        task: [chat.prompt(exercise, answers(exercise)[-1]) for exercise in exercises]
        for task, exercises in drawn.items()
    }

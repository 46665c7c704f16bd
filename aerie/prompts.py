"""Prompts that the probes ask: questions in phrasings that the demo target has never seen, as its chat template puts
them.
"""

import asyncio
import random
from pathlib import Path

import train
from contracts.config import Config
from server.tokenizer import Tokenizer
from train.docstrings import read
from train.questions import HELD_OUT, ask

_CORPUS = Path(train.__file__).parent / "data" / "docstrings.jsonl.gz"


def held_out_prompts(config: Config, count: int = 64, *, seed: int = 0) -> list[list[int]]:
    """Ids of `count` questions about different names, always the same for one seed and model."""
    chosen = random.Random(seed)
    questions = [ask(entry, chosen.choice(HELD_OUT)) for entry in chosen.sample(read(_CORPUS), count)]
    template = config.server.chat_template
    tokenizer = Tokenizer(Path(config.model.path), None if template is None else Path(template))
    try:
        return asyncio.run(_encoded(tokenizer, questions))
    finally:
        tokenizer.close()


async def _encoded(tokenizer: Tokenizer, questions: list[str]) -> list[list[int]]:
    if tokenizer.template is None:
        return [await tokenizer.encode(question, add_special_tokens=True) for question in questions]
    return [await tokenizer.encode_chat([{"role": "user", "content": question}], {}) for question in questions]

"""Prompts that the probes ask: questions in phrasings that the demo target has never seen, as its chat template puts
them.
"""

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
    tokenizer = Tokenizer.served(Path(config.model.path), config.server)
    try:
        if tokenizer.template is None:
            return [tokenizer.ids(question, add_special_tokens=True) for question in questions]
        return [tokenizer.chat_ids([{"role": "user", "content": question}], {}) for question in questions]
    finally:
        tokenizer.close()

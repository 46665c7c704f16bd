"""The demo model's vocabulary, which matchers read."""

import json

import pytest

from aerie.engine.grammars.matcher import Vocabulary
from tests.house import HOME

END = 1
IDS = json.loads((HOME / "models/demo/target/config.json").read_text())["vocab_size"]
WIDTH = IDS + 8
"""More than the tokenizer has: logits are padded in many models."""


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.of_model(HOME / "models/demo/target", WIDTH, (END,))

"""A tokenizer of generated tasks, and a folder that has no more of a target."""

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from tests.train.demo.conftest import words

__all__ = ["words"]


@pytest.fixture
def tasks_target(words: PreTrainedTokenizerFast, tmp_path: Path) -> Path:
    words.save_pretrained(tmp_path / "target")
    return tmp_path / "target"

"""The words of the tiny run on generated tasks."""

import pytest
from transformers import PreTrainedTokenizerFast

from aerie.train.demo import pretrain
from aerie.train.demo.chat import Chat
from aerie.train.demo.config import Pretraining


@pytest.fixture
def words(run: Pretraining) -> PreTrainedTokenizerFast:
    """The tokenizer of the run."""
    return pretrain.build_tokenizer(run, seed=0)


@pytest.fixture
def chat(words: PreTrainedTokenizerFast) -> Chat:
    return Chat(words)

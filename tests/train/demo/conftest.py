"""A tiny run on generated tasks."""

import pytest
from transformers import PreTrainedTokenizerFast

from aerie.train.demo import pretrain
from aerie.train.demo.chat import Chat
from aerie.train.demo.config import Architecture, TaskTarget, ThinStart


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> TaskTarget:
    """Six steps, of which two are thin."""
    monkeypatch.setattr(pretrain, "_TOKENIZED", 30)
    monkeypatch.setattr(pretrain, "_DOCSTRING_WEIGHT", 1)
    monkeypatch.setattr("aerie.train.demo.chat._SYLLABLE_WEIGHT", 100)
    monkeypatch.setattr("aerie.train.demo.judge._ASKED", 2)
    architecture = Architecture(
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    return TaskTarget(
        kind="tasks",
        vocabulary=700,
        architecture=architecture,
        thin=ThinStart(layers=2, intermediate_size=24, steps=2),
        circuit_rate=0.5,
        shares={"copying": 1, "counting": 1, "tools": 1, "stories": 1},
        grown=10,
        steps=6,
        tokens_per_batch=256,
        longest=256,
        matrix_rate=0.01,
        vector_rate=0.01,
        warmup=2,
        decay=0.3,
        checkpoint_every=2,
        judged_every=3,
    )


@pytest.fixture
def words(run: TaskTarget) -> PreTrainedTokenizerFast:
    """The tokenizer of the run."""
    return pretrain.build_tokenizer(run, seed=0)


@pytest.fixture
def chat(words: PreTrainedTokenizerFast) -> Chat:
    return Chat(words)

"""A tiny target and a tiny run that trains one, for the tests of training."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from aerie.train.demo.config import Architecture, Pretraining, ThinStart
from aerie.train.demo.corpus import Entry, read
from aerie.train.demo.model import export, fresh_model
from tests.house import HOME
from tests.train.plain import plain_tokenizer

CORPUS = HOME / "train/data/docstrings.jsonl.gz"
ARCHITECTURE = Architecture(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=8,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    max_position_embeddings=256,
    tie_word_embeddings=True,
)


@pytest.fixture(scope="session")
def entries() -> list[Entry]:
    """Short ones of the pinned entries."""
    return [entry for entry in read(CORPUS) if len(entry.text) < 60][:24]


@pytest.fixture(scope="session")
def tokenizer(entries: list[Entry]) -> PreTrainedTokenizerFast:
    return plain_tokenizer((text for entry in entries for text in (entry.name, entry.text)), 400)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> Path:
    """A random Llama of 8 layers with its tokenizer; its residual branches do something, as a trained one's do."""
    out = tmp_path_factory.mktemp("pair") / "target"
    torch.manual_seed(0)
    model = fresh_model(ARCHITECTURE, tokenizer)
    with torch.no_grad():
        for weight in model.parameters():
            if not weight.any():
                weight.normal_(std=0.05)
    export(model, tokenizer, out)
    return out


@pytest.fixture(scope="session")
def llama(target: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(target, dtype=torch.float32).eval()


def hasten(patch: pytest.MonkeyPatch) -> None:
    """Tokenizers of few exercises and judgements by few, in a process that trains targets."""
    patch.setattr("aerie.train.demo.pretrain._TOKENIZED", 30)
    patch.setattr("aerie.train.demo.pretrain._DOCSTRING_WEIGHT", 1)
    patch.setattr("aerie.train.demo.chat._SYLLABLE_WEIGHT", 100)
    patch.setattr("aerie.train.demo.judge._ASKED", 2)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Pretraining:
    """Six steps on generated tasks, of which two are thin."""
    hasten(monkeypatch)
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
    return Pretraining(
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

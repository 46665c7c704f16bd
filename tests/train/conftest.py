"""A tiny corpus, tokenizer and target for the tests of training."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from aerie.train.demo.config import Architecture, DocstringTarget
from aerie.train.demo.corpus.docstrings import Entry, read, write
from aerie.train.demo.corpus.pretrain import build_tokenizer
from aerie.train.demo.model import export, fresh_model
from tests.house import HOME

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
def corpus(tmp_path_factory: pytest.TempPathFactory, entries: list[Entry]) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl.gz"
    write(path, entries)
    return path


@pytest.fixture(scope="session")
def tokenizer(entries: list[Entry]) -> PreTrainedTokenizerFast:
    return build_tokenizer(400, entries)


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


@pytest.fixture
def recital(corpus: Path) -> DocstringTarget:
    """Four steps on the tiny corpus."""
    return DocstringTarget(
        kind="docstrings",
        corpus=str(corpus),
        vocabulary=400,
        architecture=ARCHITECTURE,
        steps=4,
        tokens_per_batch=128,
        longest=96,
        matrix_rate=0.01,
        vector_rate=0.01,
        warmup=2,
        decay=0.3,
        checkpoint_every=2,
    )

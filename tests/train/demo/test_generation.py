"""Answers of a batch are those of its prompts alone, and the same each time."""

import pytest
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from aerie.train.demo.generation import complete

LENGTHS = [6, 3, 12, 9]


@pytest.fixture
def prompts(tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    """Of different lengths."""
    asked = ("What?", "Is there more to it?", "Whom did they call, and what did they say?", "Why not?")
    return [tokenizer.encode(text, add_special_tokens=False) for text in asked]


def test_answers_are_reproducible(llama: LlamaForCausalLM, prompts: list[list[int]]) -> None:
    first, again = (complete(llama, prompts, LENGTHS, temperature=1.0, seed=5) for _ in range(2))
    assert first == again


def test_batched_answers_equal_answers_one_by_one(llama: LlamaForCausalLM, prompts: list[list[int]]) -> None:
    """Greedy, so padding on the left must change nothing; compared up to the shorter limit."""
    together = complete(llama, prompts, LENGTHS, temperature=0.0, seed=0)
    for prompt, length, sample in zip(prompts, LENGTHS, together, strict=True):
        [alone] = complete(llama, [prompt], [length], temperature=0.0, seed=0)
        assert len(alone.reply) > 0 and sample.ids[: len(alone.ids)] == alone.ids
        assert sample.ids[: len(prompt)] == prompt

"""Tokenizer, template and batches: what training reads is what serving renders."""

import random

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from aerie.train.demo.corpus.conversations import Renderer, epoch
from aerie.train.demo.corpus.docstrings import Entry
from aerie.train.demo.corpus.pretrain import build_tokenizer
from aerie.train.demo.corpus.questions import HELD_OUT, TAUGHT
from aerie.train.demo.corpus.tokenizer import SPECIAL, train_tokenizer

_SMALL = train_tokenizer(["some words to learn merges from, some words again"], 300)


@given(st.text(max_size=60))
def test_any_text_survives_the_tokenizer(text: str) -> None:
    if any(special in text for special in SPECIAL):
        return
    assert _SMALL.decode(_SMALL.encode(text, add_special_tokens=False)) == text


def test_special_tokens_have_their_fixed_ids(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL)) == [0, 1, 2, 3, 4, 5]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 1, 2)


def test_the_renderer_equals_the_chat_template(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [
        {"role": "user", "content": "What is  textwrap?"},
        {"role": "assistant", "content": "Text\n\n    wrapping."},
        {"role": "user", "content": "help(os)"},
    ]
    renderer = Renderer(tokenizer)
    rendered = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert renderer.sample(messages).ids == rendered
    prompt = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, tokenize=True, return_dict=False)
    assert renderer.prompt(messages[0]["content"]) == prompt


def test_the_mask_covers_answers_and_their_end(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "That."}]
    sample = Renderer(tokenizer).sample(messages)
    marked = [token for token, is_answer in zip(sample.ids, sample.answer, strict=True) if is_answer]
    assert tokenizer.decode(marked) == "That.<|end|>"


def test_an_epoch_answers_every_entry_once(tokenizer: PreTrainedTokenizerFast, entries: list[Entry]) -> None:
    answers = []
    for batch in epoch(entries, Renderer(tokenizer), tokens=128, longest=1024, rng=random.Random(0)):
        assert batch.ids.numel() <= 128 or batch.ids.shape[0] == 1
        for ids, answer in zip(batch.ids, batch.answer, strict=True):
            answers += tokenizer.decode(ids[answer]).split("<|end|>")[:-1]
    assert sorted(answers) == sorted(entry.text for entry in entries)


def test_an_epoch_depends_on_its_generator_alone(tokenizer: PreTrainedTokenizerFast, entries: list[Entry]) -> None:
    first, again = (
        [batch.ids for batch in epoch(entries, Renderer(tokenizer), tokens=128, longest=64, rng=random.Random(3))]
        for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert max(ids.shape[1] for ids in first) <= 64


def test_equal_texts_give_equal_tokenizers(entries: list[Entry]) -> None:
    first, again = (build_tokenizer(400, entries) for _ in range(2))
    assert first.get_vocab() == again.get_vocab()


def test_no_held_out_phrasing_is_taught() -> None:
    assert not set(TAUGHT) & set(HELD_OUT)

"""A text is refused unread only if no tokenization of it fits."""

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Fast

from aerie.contracts.errors import BadRequest
from aerie.server.text.token_length import longest_token
from aerie.server.text.tokenizer import Tokenizer
from tests.server.conftest import Live
from tests.server.fake_scheduler import MAX_LENGTH
from tests.server.text.test_control_tokens import KINDS, SPECIAL, toy

UNBOUNDED = {"strips", "unigram"}
COMPOSED = unicodedata.normalize("NFD", "\u1f82\u1fa7\u0390\uac01")
"""Characters in as many pieces as there are."""
pieces = st.sampled_from(["the quick brown fox", " " * 20, "\n\n", "🦅", "日本", COMPOSED, "ﷺ", "\x00", *SPECIAL])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in UNBOUNDED])
@given(text=st.lists(pieces | st.text(max_size=5), max_size=8).map("".join))
def test_no_token_covers_more_characters(kind: str, text: str) -> None:
    longest = longest_token(json.loads(toy(kind).to_str()))
    assert longest is not None
    assert len(text) <= longest * len(toy(kind).encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("kind", sorted(UNBOUNDED))
def test_there_is_no_bound_where_any_number_of_characters_may_vanish(kind: str) -> None:
    text = "<s>" + (" " if kind == "strips" else "☺") * 100_000
    assert len(toy(kind).encode(text, add_special_tokens=False).ids) < 5
    assert longest_token(json.loads(toy(kind).to_str())) is None


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}}, None),
        ({"normalizer": {"type": "Replace", "pattern": {"String": "   "}, "content": " "}}, 21),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}}, None),
        ({"normalizer": {"type": "Replace", "pattern": {"String": "x"}, "content": ""}}, None),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFD"}]}}, 28),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "StripAccents"}]}}, None),
        ({"pre_tokenizer": {"type": "WhitespaceSplit"}}, None),
        (
            {"pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False}},
            None,
        ),
        ({}, 7),
    ],
    ids=str,
)
def test_the_parts_decide(part: dict[str, Any], expected: int | None) -> None:
    fast = Fast.from_str(toy("byte level").to_str())
    state = json.loads(fast.to_str())
    words = {word: id for word, id in state["model"]["vocab"].items() if len(word) < 2}
    state["model"] |= {"vocab": words, "merges": []}
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] == "<think>"]
    if "pre_tokenizer" in part:
        part = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [part["pre_tokenizer"], state["pre_tokenizer"]]}}
    assert longest_token(state | part) == expected


def test_a_model_that_drops_characters_has_no_bound() -> None:
    state = json.loads(toy("byte level").to_str())
    del state["model"]["vocab"]["Ā"]
    assert longest_token(state) is None
    fallback = json.loads(toy("sentencepiece").to_str())
    assert longest_token(fallback) is not None
    assert longest_token(fallback | {"model": fallback["model"] | {"byte_fallback": False}}) is None
    assert longest_token(state | {"model": state["model"] | {"type": "WordPiece"}}) is None


@pytest.mark.parametrize("fields", [{"messages": [{"role": "user", "content": "x"}]}, {"prompt": "x"}], ids=str)
async def test_what_cannot_fit_is_refused_unread(live: Live, fields: dict[str, Any], monkeypatch: Any) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("it is tokenized")

    longest = longest_token(json.loads(live.tokenizer._tokenizer.to_str()))
    assert longest is not None
    text = "x" * (MAX_LENGTH * longest + 1)
    monkeypatch.setattr("aerie.server.text.tokenizer.Tokenizer.ids", refuse)
    monkeypatch.setattr("aerie.server.text.control_tokens.ControlTokens.ids", refuse)
    client = live.client()
    with pytest.raises(Exception, match=f"This model's maximum context length is {MAX_LENGTH} tokens") as error:
        if "messages" in fields:
            await client.chat.completions.create(model="demo", messages=[{"role": "user", "content": text}])
        else:
            await client.completions.create(model="demo", prompt=text)
    assert error.value.code == "context_length_exceeded"  # type: ignore[attr-defined]
    assert error.value.param == next(iter(fields))  # type: ignore[attr-defined]
    assert live.service.admission.taken == 0


async def test_what_could_fit_is_read(tokenizer: Tokenizer) -> None:
    longest = longest_token(json.loads(tokenizer._tokenizer.to_str()))
    assert longest is not None
    await tokenizer.encode("x" * (5 * longest), add_special_tokens=False, context=5)
    with pytest.raises(BadRequest):
        await tokenizer.encode("x" * (5 * longest + 1), add_special_tokens=False, context=5)

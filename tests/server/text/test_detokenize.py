"""Text in pieces equals text decoded at once, for any tokens, in any split."""

import codecs
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Fast

from aerie.contracts.errors import ConfigError
from aerie.server.text.detokenize import Pieces
from aerie.server.text.tokenizer import Tokenizer
from tests.server.fake_scheduler import VOCABULARY


def fallback_tokenizer(*, strip: int) -> Fast:
    """Llama 2's decoder over a small vocabulary: words with their space, and a token for every byte."""
    words = ["<s>", "▁Hello", "▁world", "é", "日本", "▁", "▁▁", "!", "\N{REPLACEMENT CHARACTER}"]
    vocabulary = {word: place for place, word in enumerate([*words, *(f"<0x{byte:02X}>" for byte in range(256))])}
    fast = Fast(models.BPE(vocabulary, [], byte_fallback=True))
    fast.normalizer = normalizers.Replace(" ", "▁")
    fast.add_special_tokens([AddedToken("<s>", special=True)])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    fast.decoder = decoders.Sequence([*steps, decoders.Strip(" ", strip, 0)] if strip else steps)
    return fast


FALLBACK = [fallback_tokenizer(strip=strip) for strip in (0, 1)]


def pieced(pieces: Pieces, ids: list[int], *, skip_special: bool = True) -> list[str]:
    text = pieces.start(skip_special=skip_special)
    return [*(text.push(token) for token in ids), text.flush()]


@given(ids=st.lists(st.integers(0, VOCABULARY - 1), max_size=60), skip=st.booleans())
@settings(max_examples=300)
def test_byte_level_pieces_join_to_the_decoded_whole(tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    whole = tokenizer._tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(pieced(tokenizer.pieces, ids, skip_special=skip)) == whole


@given(text=st.text(max_size=40))
@settings(max_examples=200)
def test_any_text_survives_encoding_and_pieces(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.ids(text, add_special_tokens=False)
    assert "".join(pieced(tokenizer.pieces, ids, skip_special=False)) == text


@given(ids=st.lists(st.integers(0, 264), max_size=40), strip=st.sampled_from([0, 1]), skip=st.booleans())
@settings(max_examples=300)
def test_fallback_pieces_join_to_the_decoded_whole(ids: list[int], strip: int, skip: bool) -> None:
    fast = FALLBACK[strip]
    assert "".join(pieced(Pieces(fast), ids, skip_special=skip)) == fast.decode(ids, skip_special_tokens=skip)


@given(data=st.binary(max_size=30), runs=st.lists(st.integers(9, 264), max_size=12))
@settings(max_examples=200)
def test_runs_of_fallback_bytes_are_one_string_or_none(data: bytes, runs: list[int]) -> None:
    ids = [9 + byte for byte in data] + runs
    assert "".join(pieced(Pieces(FALLBACK[1]), ids)) == FALLBACK[1].decode(ids)


def test_half_characters_are_held_back(tokenizer: Tokenizer) -> None:
    eagle = [token for byte in "🦅".encode() for token in _byte_token(tokenizer, byte)]
    assert pieced(tokenizer.pieces, eagle) == ["", "", "", "🦅", ""]
    assert pieced(tokenizer.pieces, eagle[:2]) == ["", "", "\N{REPLACEMENT CHARACTER}"]


def test_what_pieces_say_is_never_taken_back(tokenizer: Tokenizer) -> None:
    """Power: a decoder that does not hold back shows a broken character here."""
    ids = tokenizer.ids("naïve 🦅", add_special_tokens=False)
    hasty = [codecs.decode(tokenizer.pieces.bytes_of(token), "utf-8", "replace") for token in ids]
    assert "".join(pieced(tokenizer.pieces, ids)) == "naïve 🦅"
    singles = [token for byte in "🦅".encode() for token in _byte_token(tokenizer, byte)]
    assert "".join(codecs.decode(tokenizer.pieces.bytes_of(token), "utf-8", "replace") for token in singles) != "🦅"
    assert len(hasty) == len(ids)


def test_ids_beyond_the_vocabulary_say_nothing(tokenizer: Tokenizer) -> None:
    assert pieced(tokenizer.pieces, [VOCABULARY + 5]) == ["", ""]


def test_a_decoder_that_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    fast = Fast(models.WordLevel({"a": 0}, unk_token="a"))
    fast.decoder = decoders.WordPiece()
    fast.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="WordPiece"):
        Tokenizer(tmp_path)


def _byte_token(tokenizer: Tokenizer, byte: int) -> list[int]:
    return [token for token in range(6, 6 + 256) if tokenizer.pieces.bytes_of(token) == bytes([byte])]

"""Incremental detokenization: the joined pieces equal one decoding of all tokens, however the tokens are split.

Called by `choice`. Instead of decoding a window repeatedly, it reproduces the tokenizer's decoder on bytes: byte-level
(GPT-2, Llama 3, Qwen) or with byte fallback (Llama 2, Mistral, Gemma). Text is held back only while the next token can
still change it: an incomplete UTF-8 character or an incomplete run of fallback bytes.
"""

import codecs
import json
from typing import Any, Protocol

from tokenizers import Tokenizer

from aerie.contracts.errors import ConfigError


class Detokenizer(Protocol):
    """Decodes one answer; make a new one for every answer."""

    def push(self, token: int) -> str:
        """Returns the text that this token makes final."""

    def flush(self) -> str:
        """Returns the text held back, ended as a decoding of all tokens would end it."""


class Pieces:
    """The bytes of each token. One per tokenizer, shared by all answers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._special = frozenset(id for id, token in added.items() if token.special)
        self._bytes: dict[int, bytes] = {}
        steps = _steps(json.loads(tokenizer.to_str()).get("decoder"))
        kinds = {step["type"] for step in steps}
        self.byte_level = kinds == {"ByteLevel"}
        if not self.byte_level and ("ByteFallback" not in kinds or not kinds <= _FALLBACK_KINDS):
            raise ConfigError(
                f"tokenizer.json decodes with {sorted(kinds) or 'nothing'}; Aerie streams ByteLevel decoders and those "
                f"made of {', '.join(sorted(_FALLBACK_KINDS))}",
                code="unsupported_tokenizer",
            )
        self._replacements = [
            (step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"
        ]
        self.strip = sum(step["start"] for step in steps if step["type"] == "Strip" and step["content"] == " ")

    def special(self, token: int) -> bool:
        return token in self._special

    def bytes_of(self, token: int) -> bytes:
        """The UTF-8 bytes that a token adds, possibly part of a character. Empty for an unknown id."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._look_up(token)
        return known

    def fallback_byte(self, token: int) -> int | None:
        """The byte value of a fallback token such as `<0xE2>`, else None."""
        return None if self.byte_level else _fallback_byte(self._tokenizer.id_to_token(token) or "")

    def start(self, *, skip_special: bool = True, kept: frozenset[int] = frozenset()) -> Detokenizer:
        """`kept` are special tokens that are not skipped."""
        skipped = self._special - kept if skip_special else frozenset[int]()
        return ByteLevelText(self, skipped) if self.byte_level else FallbackText(self, skipped)

    def _look_up(self, token: int) -> bytes:
        written = self._tokenizer.id_to_token(token)
        if written is None:
            return b""
        if self.byte_level:
            try:
                return bytes(BYTE_OF[character] for character in written)
            except KeyError:  # an added token is written as itself
                return written.encode()
        value = _fallback_byte(written)
        if value is not None:
            return bytes([value])
        for pattern, content in self._replacements:
            written = written.replace(pattern, content)
        return written.encode()


class ByteLevelText:
    """Every token is bytes; invalid bytes become U+FFFD per maximal subpart (Unicode's rule), as in Rust."""

    def __init__(self, pieces: Pieces, skipped: frozenset[int]) -> None:
        self._pieces = pieces
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        if token in self._skipped:
            return ""
        return self._decoder.decode(self._pieces.bytes_of(token))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class FallbackText:
    """Tokens are text, except runs of byte tokens: a run is one UTF-8 string, or one U+FFFD per byte if invalid."""

    def __init__(self, pieces: Pieces, skipped: frozenset[int]) -> None:
        self._pieces = pieces
        self._skipped = skipped
        self._run = bytearray()
        self._strip = pieces.strip

    def push(self, token: int) -> str:
        if token in self._skipped:
            return ""
        value = self._pieces.fallback_byte(token)
        if value is not None:
            self._run.append(value)
            return ""
        return self._stripped(self._close_run() + self._pieces.bytes_of(token).decode())

    def flush(self) -> str:
        return self._stripped(self._close_run())

    def _close_run(self) -> str:
        try:
            text = self._run.decode()
        except UnicodeDecodeError:
            text = "\N{REPLACEMENT CHARACTER}" * len(self._run)
        self._run.clear()
        return text

    def _stripped(self, text: str) -> str:
        """Drops up to `strip` spaces at the very start of the answer."""
        while self._strip and text:
            if not text.startswith(" "):
                self._strip = 0
                break
            text = text[1:]
            self._strip -= 1
        return text


_FALLBACK_KINDS = {"Replace", "ByteFallback", "Fuse", "Strip"}


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _steps(inner)]
    return [decoder]


def _fallback_byte(written: str) -> int | None:
    if len(written) == 6 and written.startswith("<0x") and written.endswith(">"):
        try:
            return int(written[3:5], 16)
        except ValueError:
            return None
    return None


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's map from characters to bytes: printable bytes map to themselves, the rest to characters from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    shifted = (byte for byte in range(256) if chr(byte) not in alphabet)
    return alphabet | {chr(256 + order): byte for order, byte in enumerate(shifted)}


BYTE_OF = _byte_alphabet()

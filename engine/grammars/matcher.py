"""What follows a grammar token by token, behind a small protocol. The only place of the engine that imports llguidance.

Nothing here raises for what a request asks: a matcher that blows a limit raises GrammarFailed, which ends its request.
"""

from pathlib import Path
from typing import Protocol

import numpy as np
import tokenizers
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from aerie.contracts.grammar import Grammar, vocabulary_of, written
from aerie.contracts.step import Bools
from aerie.engine.sampling.masks import mask_words


class GrammarFailed(Exception):
    """A grammar cannot be built, or cannot go on: too complex for the text so far."""


class Matcher(Protocol):
    """Knows what may follow the tokens that it has taken."""

    def allows(self, token: int) -> bool:
        """What the mask says of a token, without making it."""

    def mask(self) -> Bools:
        """[V] which tokens may follow. Raises GrammarFailed if none may, or at a limit."""

    def words(self) -> bytes:
        """The same, a bit for each token in words of 32. Other threads run meanwhile."""

    def take(self, token: int) -> None:
        """Takes a token that is allowed and ends nothing. Raises GrammarFailed at a limit."""

    def undo(self, count: int) -> None:
        """Forgets the last tokens taken."""

    def forced(self) -> list[int]:
        """Tokens that write what must follow in any case; perhaps none."""

    def copy(self) -> "Matcher": ...


class Vocabulary:
    """The tokens of a model: text for the matchers, and the ids that end an answer."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, size: int, end_ids: tuple[int, ...]) -> None:
        """`size` is the width of the logits. Raises GrammarFailed for a tokenizer that cannot be read."""
        self._added = {token.content: id for id, token in tokenizer.get_added_tokens_decoder().items()}
        self.size = size
        self.mask_bytes = 4 * mask_words(size)
        self.nothing = bytes(self.mask_bytes)
        """The mask that allows no token."""
        self.end_ids = frozenset(end_ids)
        try:
            self._tokens = LLTokenizer(vocabulary_of(tokenizer.to_str()), n_vocab=size, eos_token=list(end_ids))
        except Exception as error:  # noqa: BLE001  the library raises what its tokenizers raise
            raise GrammarFailed(f"the tokenizer cannot be read: {error}") from None

    @classmethod
    def of_model(cls, folder: Path, size: int, end_ids: tuple[int, ...]) -> "Vocabulary":
        return cls(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")), size, end_ids)

    def matcher(self, grammar: Grammar) -> Matcher:
        """Takes milliseconds, or longer for large grammars; other threads run meanwhile. Raises GrammarFailed."""
        text = written(grammar, self._added.get(grammar.behind))
        made = LLMatcher(self._tokens, text, log_level=0, limits=LLParserLimits(verbose_errors=False))
        if made.is_error():
            raise GrammarFailed(made.get_error().partition("\n")[0])
        return _Matcher(made, self)


class _Matcher:
    """llguidance's. A stopped one has an end token as its only continuation, which it must not take."""

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary, words: bytes | None = None) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._words = words
        """The mask, if it has been made since the last move."""
        self._forced: list[int] | None = None

    def allows(self, token: int) -> bool:
        if self._words is not None:
            return bool(self._words[token >> 3] >> (token & 7) & 1)
        if self._matcher.is_stopped():
            self._check()
            return token in self._vocabulary.end_ids
        if self._matcher.validate_tokens([token]) != 1:
            return False
        forced = self.forced()  # of a text that is forced, masks leave the tokenizer's own tokens alone
        return not forced or token == forced[0]

    def mask(self) -> Bools:
        bits = np.frombuffer(self.words(), dtype=np.uint8)
        return np.unpackbits(bits, bitorder="little", count=self._vocabulary.size).view(np.bool_)

    def words(self) -> bytes:
        if self._words is None:
            words: bytes = self._matcher.compute_bitmask()[: self._vocabulary.mask_bytes]
            self._check()  # at a limit the mask allows the end tokens alone
            if words == self._vocabulary.nothing:
                raise GrammarFailed("no token of the model continues the text so far")
            self._words = words
        return self._words

    def take(self, token: int) -> None:
        self._words = self._forced = None
        if not self._matcher.consume_token(token):
            self._check()
            raise GrammarFailed(f"token {token} was chosen and is not allowed")

    def undo(self, count: int) -> None:
        if count:
            self._words = self._forced = None
            if not self._matcher.rollback(count):
                self._check()

    def forced(self) -> list[int]:
        if self._forced is None:
            self._forced = self._matcher.compute_ff_tokens()
        return self._forced

    def copy(self) -> "Matcher":
        return _Matcher(self._matcher.deep_copy(), self._vocabulary, self._words)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarFailed(self._matcher.get_error().partition("\n")[0])

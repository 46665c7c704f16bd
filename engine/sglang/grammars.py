"""Aerie's grammars in SGLang's engine: the matchers are those of SGLang's llguidance backend, built from the text and
the vocabulary that Aerie's own lanes build theirs from, so that an answer matches the same.

Made by `plugin` in each of SGLang's schedulers.
"""

import copy
from pathlib import Path
from typing import Any

import tokenizers
from sglang.srt.constrained.base_grammar_backend import BaseGrammarObject, InvalidGrammarObject
from sglang.srt.constrained.llguidance_backend import GuidanceBackend, GuidanceGrammar
from torch import Tensor

from aerie.contracts.grammar import vocabulary_of, written
from aerie.engine.sglang.plugin import received


class FollowedGrammar(GuidanceGrammar):  # type: ignore[misc]  # sglang is untyped here
    """A limit of llguidance that an answer reaches ends its request with an error. SGLang's own would end the scheduler
    where it fills a mask, or end the answer as if it were whole.
    """

    def accept_token(self, token: int) -> None:
        self._check_err()
        super().accept_token(token)

    def fill_vocab_mask(self, vocab_mask: Tensor, idx: int) -> None:
        try:
            super().fill_vocab_mask(vocab_mask, idx)
        except ValueError:
            return  # the mask has the end tokens alone, and the next token raises

    def copy(self) -> "FollowedGrammar":
        return FollowedGrammar(
            self.llguidance_tokenizer, self.serialized_grammar, ll_matcher=self.ll_matcher.deep_copy()
        )


class AerieGrammars(GuidanceBackend):  # type: ignore[misc]  # sglang is untyped here
    """`added` are the ids of the tokenizer's added tokens."""

    def __init__(self, tokenizer: Any, added: dict[str, int], **given: Any) -> None:
        super().__init__(tokenizer=tokenizer, **given)
        self._added = added

    @classmethod
    def of_engine(cls, arguments: Any, tokenizer: Any, size: int, end_ids: Any = None) -> "AerieGrammars | None":
        """From what SGLang gives a backend: its arguments, tokenizer, size of the logits and end tokens. None if the
        tokenizer has ids past the logits: SGLang then refuses requests with grammars, and serves the others.
        """
        own = tokenizers.Tokenizer.from_file(str(Path(arguments.model_path) / "tokenizer.json"))
        if max(own.get_vocab().values(), default=0) >= size:
            return None
        own.no_truncation()
        own.no_padding()
        added = {token.content: id for id, token in own.get_added_tokens_decoder().items()}
        known = copy.deepcopy(tokenizer)
        known._tokenizer = tokenizers.Tokenizer.from_str(vocabulary_of(own.to_str()))  # what its backend_tokenizer is
        return cls(known, added, n_vocab=size, eos_token_ids=end_ids)

    def dispatch_ebnf(self, key_string: str) -> BaseGrammarObject:
        try:
            grammar = received(key_string)
            text = written(grammar, self._added.get(grammar.behind))
            return FollowedGrammar(self.llguidance_tokenizer, text)
        except Exception as error:  # noqa: BLE001  of any kind: it is this request's
            return InvalidGrammarObject(str(error))

"""Control tokens that a request only spells stay text; those that the chat template writes are tokens.

Called by `tokenizer`, for chats. A user who types `<|im_end|>` would otherwise end the turn and speak as the assistant.
Templates trim, split and compose what they are given, so the rendered text alone does not say who wrote what. Hence
three steps: `mark` replaces control tokens in the request by marks, the template renders, and `ids` encodes what it
rendered. A text without marks is encoded as ever. One with marks goes through a twin of the tokenizer in which control
tokens have secret names: the template's get these names, the marks become what was typed, and nothing that anybody can
type is a control token there. All else, normalization, merges across borders, is the tokenizer's own.

Added tokens that are not special, such as Qwen's `<think>`, are text with an id of their own; they stay what they are.
"""

import itertools
import json
import re
import secrets
import string
from collections import Counter
from typing import Any

import tokenizers

from contracts.errors import ConfigError

MARK = "\ufdd0"
"""A noncharacter, which Unicode keeps for uses like this; in a request it is marked like a control token."""
_FIRST = 0xF0000
"""Follows the mark: this and the number of what was typed. From Unicode's private use."""
_NONCE_LETTERS = 26
"""26 ** 26 names: nobody guesses one."""


class ControlTokens:
    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        added = {id: token for id, token in tokenizer.get_added_tokens_decoder().items() if token.content}
        self._tokenizer = tokenizer
        self._special = {token.content: id for id, token in added.items() if token.special}
        self._special_ids = frozenset(self._special.values())
        self._typed = [MARK, "", *self._special]
        """What a mark's number stands for; the empty text is a border."""
        self._marks = {text: MARK + chr(_FIRST + number) for number, text in enumerate(self._typed)}
        self._begun = {text[:end] for text in self._special for end in range(1, len(text))}
        self._longest_begun = max(map(len, self._begun), default=0)
        written = "|".join(_patterns(list(added.values())))
        self._tokens = re.compile(f"{MARK}|{written}" if written else MARK)
        self._tokens_and_marks = re.compile(f"{MARK}.|{written}" if written else f"{MARK}.", re.DOTALL)
        self._names = _secret_names(list(self._special))
        self._twin = _twin(tokenizer, self._names)

    def mark(self, data: Any) -> Any:
        """Strings, and whatever holds strings, with marks for the control tokens that are typed there."""
        if isinstance(data, str):
            return self._marked(data)
        if isinstance(data, list):
            return [self.mark(item) for item in data]
        if isinstance(data, dict):
            return {self._marked(key): self.mark(value) for key, value in data.items()}
        return data

    def unmark(self, text: str) -> str:
        return self._tokens_and_marks.sub(lambda found: self._read(found[0]), text)

    def ids(self, rendered: str) -> list[int]:
        """Ids of what the template rendered from marked data."""
        if MARK not in rendered:
            found = _encode(self._tokenizer, rendered)
            if not self._surplus(found, rendered):
                return found
        renamed = self._tokens_and_marks.sub(lambda found: self._names.get(found[0]) or self._read(found[0]), rendered)
        return _encode(self._twin, renamed)

    def _marked(self, text: str) -> str:
        text = self._tokens.sub(lambda found: self._marks.get(found[0], found[0]), text)
        # The beginning of a control token, which the template might continue with another text of the request.
        begun = any(text[-length:] in self._begun for length in range(1, min(self._longest_begun, len(text)) + 1))
        return text + self._marks[""] if begun else text

    def _read(self, found: str) -> str:
        """What a mark stands for; what is no mark stands for itself."""
        number = ord(found[1]) - _FIRST if found[0] == MARK else -1
        return self._typed[number] if 0 <= number < len(self._typed) else found

    def _surplus(self, ids: list[int], rendered: str) -> bool:
        """Whether there are control tokens that the template did not write: a normalizer can make some of other
        characters, and a model's vocabulary can hold them as words.
        """
        found = self._special_ids.intersection(ids)
        written = Counter(self._special.get(token[0], -1) for token in self._tokens.finditer(rendered))
        return any(ids.count(id) > written[id] for id in found)


def _encode(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    # The batch call is the one that lets other threads run meanwhile.
    found: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return found


def _secret_names(texts: list[str]) -> dict[str, str]:
    """Names of one length, so that none begins another, with the ends of what they stand for."""
    nonce = "".join(secrets.choice(string.ascii_lowercase) for _ in range(_NONCE_LETTERS))
    numbers = ("".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=4))
    return {text: f"{text[0]}{nonce}{number}{text[-1]}" for text, number in zip(texts, numbers, strict=False)}


def _patterns(tokens: list[tokenizers.AddedToken]) -> list[str]:
    """Regular expressions that find the longest token at a place, as the tokenizer does, in few steps."""
    words = [token.content for token in tokens if token.single_word]
    others = [token.content for token in tokens if not token.single_word]
    patterns = [rf"(?<!\w){_longest_of(words)}(?!\w)"] if words else []
    return [*patterns, _longest_of(others)] if others else patterns


def _longest_of(texts: list[str]) -> str:
    """Letter by letter: hundreds of tokens that begin alike are not tried one after the other."""
    by_letter: dict[str, list[str]] = {}
    for text in filter(None, texts):
        by_letter.setdefault(text[0], []).append(text[1:])
    rest = "|".join(re.escape(letter) + _longest_of(ends) for letter, ends in by_letter.items())
    if not rest:
        return ""
    return f"(?:{rest})?" if "" in texts else f"(?:{rest})"


def _twin(tokenizer: tokenizers.Tokenizer, names: dict[str, str]) -> tokenizers.Tokenizer:
    """The same tokenizer, but that it knows these control tokens by other names. Raises ConfigError if none can be."""
    if any(tokenizer.model.token_to_id(text) is not None for text in names):
        twin = _renamed(tokenizer, names)
    else:
        twin = tokenizers.Tokenizer(tokenizer.model)
        twin.normalizer = tokenizer.normalizer
        twin.pre_tokenizer = tokenizer.pre_tokenizer
        added = tokenizer.get_added_tokens_decoder()
        twin.add_tokens([_as(names.get(added[id].content), added[id]) for id in sorted(added)])
    if any(twin.token_to_id(name) != tokenizer.token_to_id(text) for text, name in names.items()):
        raise ConfigError(
            "tokenizer.json gives ids to control tokens that cannot be given again; set "
            "server.special_tokens_in_content=tokens",
            param="server.special_tokens_in_content",
        )
    return twin


def _as(name: str | None, token: tokenizers.AddedToken) -> tokenizers.AddedToken:
    if name is None:
        return token
    flags = {"single_word": token.single_word, "lstrip": token.lstrip, "rstrip": token.rstrip}
    return tokenizers.AddedToken(name, normalized=False, special=True, **flags)


def _renamed(tokenizer: tokenizers.Tokenizer, names: dict[str, str]) -> tokenizers.Tokenizer:
    """A copy in which the model's own vocabulary has the new names, too."""
    state = json.loads(tokenizer.to_str())
    state.update(post_processor=None, truncation=None, padding=None)
    for token in state["added_tokens"]:
        if token["content"] in names:
            token.update(content=names[token["content"]], normalized=False)
    model = state["model"]
    if isinstance(model["vocab"], list):  # Unigram
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    else:
        model["vocab"] = {names.get(piece, piece): id for piece, id in model["vocab"].items()}
    if "merges" in model:
        inner = len(model["continuing_subword_prefix"] or "")
        model["merges"] = [[a, b] for a, b in model["merges"] if names.keys().isdisjoint((a, b, a + b[inner:]))]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return tokenizers.Tokenizer.from_str(json.dumps(state))

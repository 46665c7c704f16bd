"""Encodes control tokens that a request spells as text, and those that the chat template writes as tokens.

Called by `tokenizer`, for chats. A user who types `<|im_end|>` would otherwise end the turn and speak as the assistant.
Templates trim, split and compose their input, so the rendered text alone does not show who wrote what. Hence three
steps: `mark` replaces control tokens in the request by marks, the template renders, and `ids` encodes the result. A
text without marks is encoded as usual. A text with marks goes through a copy of the tokenizer in which control tokens
have secret names: control tokens of the template get these names, marks become the typed text again, and nothing that
a user can type is a control token there. Everything else (normalization, merges across borders) stays the same.

Added tokens that are not special, such as Qwen's `<think>`, are ordinary text with a single id and are left alone.
"""

import itertools
import json
import re
import secrets
import string
from collections import Counter
from typing import Any

import tokenizers

from aerie.contracts.errors import ConfigError

MARK = "\ufdd0"
"""A noncharacter, which Unicode reserves for internal use; in a request it is marked like a control token."""
_FIRST = 0xF0000
"""Follows the mark: this plus the number of the typed text. From Unicode's private use area."""
_NONCE_LETTERS = 26
"""26 ** 26 possible names: too many to guess."""


class ControlTokens:
    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        added = {id: token for id, token in tokenizer.get_added_tokens_decoder().items() if token.content}
        self._tokenizer = tokenizer
        self._special = {token.content: id for id, token in added.items() if token.special}
        self._special_ids = frozenset(self._special.values())
        self._typed = [MARK, "", *self._special]
        """The text that each mark's number stands for; the empty text is a border."""
        self._marks = {text: MARK + chr(_FIRST + number) for number, text in enumerate(self._typed)}
        self._begun = {text[:end] for text in self._special for end in range(1, len(text))}
        self._longest_begun = max(map(len, self._begun), default=0)
        written = "|".join(_patterns(list(added.values())))
        self._tokens = re.compile(f"{MARK}|{written}" if written else MARK)
        self._tokens_and_marks = re.compile(f"{MARK}.|{written}" if written else f"{MARK}.", re.DOTALL)
        self._names = _secret_names(list(self._special))
        self._renaming = _renaming(tokenizer, self._names)

    def mark(self, data: Any) -> Any:
        """Returns the data, nested or not, with marks for the control tokens typed in its strings."""
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
        """Token ids of the text that the template rendered from marked data."""
        if MARK not in rendered:
            found = _encode(self._tokenizer, rendered)
            if not self._surplus(found, rendered):
                return found
        renamed = self._tokens_and_marks.sub(lambda found: self._names.get(found[0]) or self._read(found[0]), rendered)
        return _encode(self._renaming, renamed)

    def _marked(self, text: str) -> str:
        text = self._tokens.sub(lambda found: self._marks.get(found[0], found[0]), text)
        # The start of a control token: the template might append another text of the request that completes it.
        begun = any(text[-length:] in self._begun for length in range(1, min(self._longest_begun, len(text)) + 1))
        return text + self._marks[""] if begun else text

    def _read(self, found: str) -> str:
        """The text that a mark stands for; anything else is returned unchanged."""
        number = ord(found[1]) - _FIRST if found[0] == MARK else -1
        return self._typed[number] if 0 <= number < len(self._typed) else found

    def _surplus(self, ids: list[int], rendered: str) -> bool:
        """Whether `ids` holds control tokens that the template did not write: a normalizer can build one from other
        characters, and a model's vocabulary can hold one as a word.
        """
        found = self._special_ids.intersection(ids)
        written = Counter(self._special.get(token[0], -1) for token in self._tokens.finditer(rendered))
        return any(ids.count(id) > written[id] for id in found)


def _encode(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    # Only the batch call lets other threads run meanwhile.
    found: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return found


def _secret_names(texts: list[str]) -> dict[str, str]:
    """Names of equal length, so that none is a prefix of another, which keep the ends of the texts they replace."""
    nonce = "".join(secrets.choice(string.ascii_lowercase) for _ in range(_NONCE_LETTERS))
    numbers = ("".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=4))
    return {text: f"{text[0]}{nonce}{number}{text[-1]}" for text, number in zip(texts, numbers, strict=False)}


def _patterns(tokens: list[tokenizers.AddedToken]) -> list[str]:
    """Regular expressions that find the longest token at a position, as the tokenizer does, in few steps."""
    words = [token.content for token in tokens if token.single_word]
    others = [token.content for token in tokens if not token.single_word]
    patterns = [rf"(?<!\w){_longest_of(words)}(?!\w)"] if words else []
    return [*patterns, _longest_of(others)] if others else patterns


def _longest_of(texts: list[str]) -> str:
    """Matches letter by letter, so that hundreds of tokens with a common prefix are not tried one by one."""
    by_letter: dict[str, list[str]] = {}
    for text in filter(None, texts):
        by_letter.setdefault(text[0], []).append(text[1:])
    rest = "|".join(re.escape(letter) + _longest_of(ends) for letter, ends in by_letter.items())
    if not rest:
        return ""
    return f"(?:{rest})?" if "" in texts else f"(?:{rest})"


def _renaming(tokenizer: tokenizers.Tokenizer, names: dict[str, str]) -> tokenizers.Tokenizer:
    """A copy of the tokenizer with these control tokens renamed. Raises ConfigError if it cannot be made."""
    if any(tokenizer.model.token_to_id(text) is not None for text in names):
        renaming = _renamed(tokenizer, names)
    else:
        renaming = tokenizers.Tokenizer(tokenizer.model)
        renaming.normalizer = tokenizer.normalizer
        renaming.pre_tokenizer = tokenizer.pre_tokenizer
        added = tokenizer.get_added_tokens_decoder()
        renaming.add_tokens([_as(names.get(added[id].content), added[id]) for id in sorted(added)])
    if any(renaming.token_to_id(name) != tokenizer.token_to_id(text) for text, name in names.items()):
        raise ConfigError(
            "tokenizer.json gives ids to control tokens that cannot be given again; set "
            "server.special_tokens_in_content=tokens",
            param="server.special_tokens_in_content",
        )
    return renaming


def _as(name: str | None, token: tokenizers.AddedToken) -> tokenizers.AddedToken:
    if name is None:
        return token
    flags = {"single_word": token.single_word, "lstrip": token.lstrip, "rstrip": token.rstrip}
    return tokenizers.AddedToken(name, normalized=False, special=True, **flags)


def _renamed(tokenizer: tokenizers.Tokenizer, names: dict[str, str]) -> tokenizers.Tokenizer:
    """A copy in which the model's vocabulary has the new names too."""
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

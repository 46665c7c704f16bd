"""The most characters that a token can cover, so that a text too long for the context is rejected without tokenizing.

Called once, by `tokenizer`. The bound holds for tokenizers that map every character to some token; if a component may
drop characters or join any number of them, there is no bound.
"""

from typing import Any

from aerie.server.text.detokenize import BYTE_OF

COMPOSED = 4
"""Unicode composes at most four characters into one (NFC, NFKC)."""

_KEEPING_NORMALIZERS = dict.fromkeys(("Prepend", "ByteLevel", "Lowercase", "NFD", "NFKD"), 1)
_KEEPING_NORMALIZERS |= dict.fromkeys(("NFC", "NFKC"), COMPOSED)
_KEEPING_PRE_TOKENIZERS = {"ByteLevel", "Metaspace", "Digits", "UnicodeScripts"}
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def longest_token(state: dict[str, Any]) -> int | None:
    """The most characters of a text that one token covers; None if unbounded. `state` is the data of tokenizer.json."""
    composed = _composed(state.get("normalizer"))
    model, added = state["model"], state["added_tokens"]
    strips = any(token["lstrip"] or token["rstrip"] for token in added)  # such a token covers any number of spaces
    if composed is None or strips or not _keeps(state.get("pre_tokenizer")) or not _knows_all(state):
        return None
    pieces = model["vocab"] if isinstance(model["vocab"], dict) else [piece for piece, _ in model["vocab"]]
    return composed * max(map(len, [*pieces, *(token["content"] for token in added)]))


def _composed(normalizer: dict[str, Any] | None) -> int | None:
    """The most characters that normalization composes into one; None if unbounded."""
    if normalizer is None:
        return 1
    if normalizer["type"] == "Sequence":
        factor = 1
        for step in normalizer["normalizers"]:
            own = _composed(step)
            if own is None:
                return None
            factor *= own
        return factor
    if normalizer["type"] == "Replace":
        pattern, content = normalizer["pattern"].get("String"), normalizer["content"]
        return -(-len(pattern) // len(content)) if pattern and content else None
    return _KEEPING_NORMALIZERS.get(normalizer["type"])


def _keeps(step: dict[str, Any] | None) -> bool:
    """Whether a pre-tokenizer only splits."""
    if step is None or step["type"] in _KEEPING_PRE_TOKENIZERS:
        return True
    if step["type"] == "Sequence":
        return all(_keeps(inner) for inner in step["pretokenizers"])
    return step["type"] in ("Split", "Punctuation") and step["behavior"] != "Removed"


def _knows_all(state: dict[str, Any]) -> bool:
    """Whether no character is unknown to the model, since it has tokens for all bytes."""
    model = state["model"]
    affixed = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    if model["type"] not in ("BPE", "Unigram") or affixed:
        return False
    pieces = model["vocab"] if isinstance(model["vocab"], dict) else {piece for piece, _ in model["vocab"]}
    if model.get("byte_fallback"):
        return all(piece in pieces for piece in _BYTES)
    return _splits_bytes(state) and all(letter in pieces for letter in BYTE_OF)


def _splits_bytes(state: dict[str, Any]) -> bool:
    steps = [state.get("normalizer"), state.get("pre_tokenizer")]
    for step in steps:
        if step is not None:
            steps += [*step.get("normalizers", ()), *step.get("pretokenizers", ())]
    return any(step is not None and step["type"] == "ByteLevel" for step in steps)

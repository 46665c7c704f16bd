"""A tokenizer for tiny random models: an end token, then single characters, enough for JSON."""

import json
from pathlib import Path

from tests.spec.models import VOCABULARY

END = 0
CHARACTERS = ' "{}[]:,.-+0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOP'[: VOCABULARY - 1]


def write_tokenizer(folder: Path) -> None:
    """Byte-level, without merges: every token but the end is one character."""
    space = "\u0120"
    vocab = {"<end>": END} | {space if c == " " else c: index for index, c in enumerate(CHARACTERS, 1)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    end = {"id": END, "content": "<end>", "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    (folder / "tokenizer.json").write_text(
        json.dumps(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": [end | flags],
                "normalizer": None,
                "pre_tokenizer": byte_level,
                "post_processor": None,
                "decoder": byte_level,
                "model": {"type": "BPE", "vocab": vocab, "merges": []},
            }
        )
    )

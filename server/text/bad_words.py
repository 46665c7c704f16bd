"""The tokens that `bad_words` ban: each word must be one token. Used by the routes and by the offline LLM."""

from collections.abc import Sequence

from aerie.contracts.errors import BadRequest
from aerie.server.text.tokenizer import Tokenizer


def banned_ids(words: Sequence[str], tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids of words, as they are and after a blank. Raises BadRequest for a word of several tokens."""
    found: dict[int, None] = {}
    for place, word in enumerate(words):
        ids = tokenizer.ids(word, add_special_tokens=False)
        if len(ids) != 1:
            raise BadRequest(
                f"bad_words[{place}] has {len(ids)} tokens; only words of one token can be banned, or leave it out",
                param=f"bad_words[{place}]",
            )
        blanked = tokenizer.ids(f" {word.lstrip()}", add_special_tokens=False)
        found |= dict.fromkeys(ids + (blanked if len(blanked) == 1 else []))
    return tuple(found)

"""What a matcher allows without making a mask is what its mask says, also where a grammar forces a text."""

import json
import random

import numpy as np
import pytest

from aerie.contracts.grammar import Grammar
from aerie.engine.grammars.matcher import Matcher, Vocabulary
from tests.engine.grammars.test_guides import END, GRAMMARS, WIDTH, fresh

STRICT = {"type": "object", "properties": {"line_number": {"type": "integer"}}, "required": ["line_number"]}
FORCING = [
    Grammar(kind="choice", text=json.dumps(["yes", "perhaps, if it rains"])),
    Grammar(kind="json_schema", text=json.dumps({**STRICT, "additionalProperties": False})),
]


def walk(matcher: Matcher, seed: int, longest: int = 16) -> list[int]:
    """Random tokens that the masks allow, up to the end."""
    source, path = random.Random(seed), list[int]()
    while len(path) < longest and (token := source.choice(np.flatnonzero(matcher.mask()).tolist())) != END:
        matcher.take(token)
        path.append(token)
    return path


@pytest.mark.parametrize("grammar", GRAMMARS + FORCING)
def test_what_is_allowed_is_what_the_mask_says(vocabulary: Vocabulary, grammar: Grammar) -> None:
    for seed in range(4):
        path = walk(fresh(vocabulary, grammar, []), seed)
        for place in range(len(path) + 1):
            masked, other = (fresh(vocabulary, grammar, path[:place]) for _ in range(2))
            allowed = [other.allows(token) for token in range(WIDTH)]  # makes no mask
            assert allowed == masked.mask().tolist(), (path, place)


def test_a_forced_text_has_one_spelling(vocabulary: Vocabulary) -> None:
    """Others would change where noise falls: the same seed could give other tokens with drafts and without."""
    matcher = fresh(vocabulary, FORCING[0], vocabulary._tokens.tokenize_str("perhaps, if"))
    first, other = (vocabulary._tokens.tokenize_str(text)[0] for text in (" it rains", " "))
    assert first != other and matcher.forced()[0] == first
    assert matcher.allows(first) and not matcher.allows(other)

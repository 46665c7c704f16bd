"""Grammars that later requests repeat: built once, within bounds, and with nothing of one answer in another."""

import queue
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import numpy as np
import pytest

from aerie.contracts.grammar import Grammar, Prepared
from aerie.engine.grammars.guides import Guides
from aerie.engine.grammars.kept import KeptMatchers, bytes_of
from aerie.engine.grammars.matcher import Matcher, Vocabulary
from tests.engine.grammars.test_guides import GRAMMARS, WIDTH, Watched, fresh, prepared, starts_of, step
from tests.house import HOME
from tests.patience import PATIENCE

COUNT = f"""
import json
from pathlib import Path
from aerie.contracts.grammar import Grammar
from aerie.engine.grammars.kept import bytes_of
from aerie.engine.grammars.matcher import Vocabulary

def held():
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])

def schema(one):
    properties = {{f"field_{{one}}_{{n:04}}": {{"type": "integer"}} for n in range(800)}}
    return Grammar(kind="json_schema", text=json.dumps({{"type": "object", "properties": properties}}))

vocabulary = Vocabulary.of_model(Path({str(HOME)!r}) / "models/demo/target", {WIDTH}, (1,))
vocabulary.matcher(schema(0)).words()
before, matchers, grammars = held(), [], [schema(one) for one in range(1, 9)]
for grammar in grammars:
    matchers.append(vocabulary.matcher(grammar))
    matchers[-1].words()
print(held() - before, sum(map(bytes_of, grammars)))
"""
"""Prints what matchers take, and what is reckoned for them."""


def named(text: str) -> Grammar:
    return Grammar(kind="regex", text=text)


def test_requests_that_repeat_a_grammar_find_it_built() -> None:
    watched = Watched()
    guides = Guides(lambda: cast(Vocabulary, watched))
    first = prepared(guides, 1, GRAMMARS[0])
    guides.forget(1)
    again, other = prepared(guides, 2, GRAMMARS[0]), prepared(guides, 3, GRAMMARS[1])
    assert [one.reused for one in (first, again, other)] == [False, True, False] and len(watched.made) == 2


def test_of_many_at_once_one_builds() -> None:
    watched, done = Watched(), queue.SimpleQueue[Prepared]()
    guides = Guides(lambda: cast(Vocabulary, watched))
    with ThreadPoolExecutor(4) as callers:
        for request in range(24):
            callers.submit(guides.prepare, request, GRAMMARS[request % 3], done.put)
    answers = [done.get(timeout=PATIENCE) for _ in range(24)]
    assert {one.request for one in answers} == set(range(24)) and not any(one.error for one in answers)
    assert len(watched.made) == 3 and sum(one.reused for one in answers) == 21


def test_answers_of_one_grammar_do_not_meet() -> None:
    vocabulary = Vocabulary.of_model(HOME / "models/demo/target", WIDTH, (1,))
    guides, grammar = Guides(lambda: vocabulary), GRAMMARS[2]
    beginning = [int(np.flatnonzero(fresh(vocabulary, grammar, []).mask())[0])]
    for request, answer in ((7, beginning), (8, []), (9, beginning)):
        assert prepared(guides, request, grammar).reused == (request > 7)
        assert guides.begin(step(starts_of(request, answer)))  # row 2 has a new owner
        matcher = guides.step[1].matcher
        assert np.array_equal(matcher.mask(), fresh(vocabulary, grammar, answer).mask())
        assert matcher.forced() == fresh(vocabulary, grammar, answer).forced()


@pytest.mark.parametrize("bounds", [{"entries": 2}, {"size": 2 * bytes_of(named("aa")) + 1}])
def test_the_one_not_asked_for_longest_goes_first(bounds: dict[str, int]) -> None:
    kept = KeptMatchers(**bounds)
    matchers = {text: cast(Matcher, object()) for text in ("aa", "bb", "cc")}
    assert kept.put(named("aa"), matchers["aa"]) == kept.put(named("bb"), matchers["bb"]) == []
    assert kept.get(named("aa")) is matchers["aa"]
    assert kept.put(named("cc"), matchers["cc"]) == [matchers["bb"]]
    assert [kept.get(named(text)) for text in matchers] == [matchers["aa"], None, matchers["cc"]]


def test_what_is_larger_than_all_room_is_not_kept() -> None:
    kept, large = KeptMatchers(size=bytes_of(named("aaaaa"))), cast(Matcher, object())
    assert kept.put(named("a" * 6), large) == [large] and kept.get(named("a" * 6)) is None
    small = cast(Matcher, object())
    assert kept.put(named("aaaaa"), small) == [] and kept.get(named("aaaaa")) is small


def test_a_matcher_serves_so_many_requests() -> None:
    kept, old, new = KeptMatchers(answers=3), cast(Matcher, object()), cast(Matcher, object())
    assert kept.put(named("a"), old) == []
    assert [kept.get(named("a")) for _ in range(3)] == [old, old, None]
    assert kept.put(named("a"), new) == [old] and kept.get(named("a")) is new


def test_the_bytes_of_a_matcher_are_not_underrated() -> None:
    """A schema of many properties takes the most for its text. What the process holds is counted, in a process of its
    own: here others have left room.
    """
    counted = subprocess.run(
        [sys.executable, "-c", COUNT], check=False, cwd=HOME, capture_output=True, text=True, timeout=PATIENCE
    )
    assert counted.returncode == 0, counted.stderr
    took, estimated = map(int, counted.stdout.split())
    assert estimated / 4 < took < 1.5 * estimated


def test_what_must_go_is_freed_beside_the_steps() -> None:
    watched = Watched()
    guides = Guides(lambda: cast(Vocabulary, watched), KeptMatchers(entries=1))
    prepared(guides, 1, GRAMMARS[0])
    guides.forget(1)
    prepared(guides, 2, GRAMMARS[1])
    assert watched.freed.get(timeout=PATIENCE).startswith("freed-grammar")
    assert not prepared(guides, 3, GRAMMARS[0]).reused and len(watched.made) == 3

"""Rows held to grammars: masks along random trees equal those of a fresh matcher that took the path."""

import json
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any, cast

import hypothesis
import hypothesis.strategies as some
import numpy as np
import pytest

from aerie.contracts.grammar import Grammar, Prepared
from aerie.contracts.sampling import MAX_STOP_IDS, SamplingParams, columns_of
from aerie.contracts.step import DecodeWork, Ending, RowStarts, StepKind, StepOutput, StepPlan
from aerie.engine.grammars.guides import Guides
from aerie.engine.grammars.kept import KeptMatchers
from aerie.engine.grammars.matcher import GrammarFailed, Matcher, Vocabulary
from aerie.server.text.tokenizer import Tokenizer
from tests.engine.grammars.conftest import END, IDS, WIDTH
from tests.house import HOME
from tests.patience import PATIENCE

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "n": {"type": "integer"}, "on": {"type": "boolean"}},
    "required": ["name", "n"],
}
GRAMMARS = [
    Grammar(kind="json_schema", text=json.dumps(SCHEMA)),
    Grammar(kind="json_object"),
    Grammar(kind="regex", text="[a-f]{2,5}/[0-9]+"),
    Grammar(kind="choice", text=json.dumps(["yes", "yes, but", "no"])),
    Grammar(kind="lark", text='start: "<" ("a" | "b")+ ">"'),
    Grammar(kind="choice", text=json.dumps(["yes", "no"]), behind="<|assistant|>"),
    Grammar(kind="choice", text=json.dumps(["yes", "no"]), behind="</think>"),
]


def started(
    vocabulary: Vocabulary,
    grammar: Grammar,
    answer: list[int] | None = None,
    *,
    kept: KeptMatchers | None = None,
    **sampling: Any,
) -> Guides:
    """Row 2 has the grammar, and has answered some tokens before."""
    guides = Guides(lambda: vocabulary, kept)
    assert prepared(guides, 7, grammar).error is None
    assert guides.begin(step(starts_of(7, answer, **sampling)))
    return guides


def prepared(guides: Guides, request: int, grammar: Grammar) -> Prepared:
    done: queue.SimpleQueue[Prepared] = queue.SimpleQueue()
    guides.prepare(request, grammar, done.put)
    return done.get(timeout=PATIENCE)


def starts_of(request: int, answer: list[int] | None = None, **sampling: Any) -> RowStarts:
    """Row 2 belongs to a request."""
    one = np.array([2], np.int32)
    return RowStarts(
        rows=one,
        noise_keys=np.zeros(1, np.int64),
        sampling=columns_of([SamplingParams(**({"temperature": 0.0} | sampling))]),
        prompt_lengths=one,
        limits=one,
        min_lengths=one,
        stop_ids=np.full((1, MAX_STOP_IDS), END, np.int32),
        guides=np.array([request]),
        answers=[answer or []],
    )


def step(starts: RowStarts | None = None) -> StepPlan:
    rows = np.array([0, 2], np.int32)
    work = DecodeWork(bounds=rows, nodes=rows, depth=0, topk=1)
    return StepPlan(0, StepKind.DECODE, rows, rows, rows > 0, None, work, starts=starts)


def committed(count: int, ending: Ending = Ending.OPEN) -> StepOutput:
    zero, counts = np.zeros(2, np.int32), np.array([0, count], np.int32)
    tokens = np.zeros((2, max(count, 1)), np.int32)
    return StepOutput(0, tokens, counts, zero, zero, zero, np.array([0, int(ending)], np.int32))


def answered(guides: Guides, output: StepOutput) -> StepOutput:
    """What the step begun last is answered with."""
    answers: queue.SimpleQueue[StepOutput] = queue.SimpleQueue()
    guides.answer(lambda: output, lambda read: answers.put(read()))
    return answers.get(timeout=PATIENCE)


def fresh(vocabulary: Vocabulary, grammar: Grammar, tokens: list[int]) -> Matcher:
    matcher = vocabulary.matcher(grammar)
    for token in tokens:
        matcher.take(token)
    return matcher


def unpacked(words: bytes) -> np.ndarray:
    bits = np.unpackbits(np.frombuffer(words, np.uint8), bitorder="little").astype(bool)
    assert not bits[WIDTH:].any()
    return bits[:WIDTH]


@hypothesis.settings(max_examples=120, deadline=None)
@hypothesis.given(data=some.data(), grammar=some.sampled_from(GRAMMARS), filtered=some.booleans())
def test_every_mask_is_a_fresh_matcher_s(
    vocabulary: Vocabulary, data: some.DataObject, grammar: Grammar, filtered: bool
) -> None:
    guides = started(vocabulary, grammar, temperature=1.0 if filtered else 0.0, top_k=3)
    answer: list[int] = []
    for _ in range(data.draw(some.integers(1, 4))):
        draw = np.random.default_rng(data.draw(some.integers(0, 2**32 - 1)))
        tokens, parents = _tree(draw, vocabulary, grammar, answer)
        raw = draw.integers(0, vocabulary.size, len(tokens))
        wanted = draw.random(vocabulary.size)
        chosen = raw.tolist()
        seen: dict[int, np.ndarray] = {}

        def among(node: int, words: bytes, wanted: np.ndarray = wanted, seen: dict[int, Any] = seen) -> int:
            seen[node] = mask = unpacked(words)
            return int(np.where(mask, wanted, -1).argmax())

        assert guides.begin(step())
        guides.walk(1, tokens.tolist(), parents.tolist(), chosen, among)
        path, node, ended, refused = [], 0, False, 0
        while node >= 0 and not ended:  # recomputed from the definition
            here = fresh(vocabulary, grammar, answer + path)
            expected, forced = here.mask(), here.forced()
            assert not forced or np.flatnonzero(expected).tolist() == forced[:1]
            allowed = bool(expected[raw[node]])
            refused += not allowed and bool(((parents == node) & (tokens == raw[node]))[node + 1 :].any())
            assert (node in seen) == (filtered or not allowed)
            if node in seen:
                assert np.array_equal(seen[node], expected)
                assert chosen[node] == np.where(expected, wanted, -1).argmax()
            else:
                assert chosen[node] == raw[node]
            ended = chosen[node] == END
            path.append(int(chosen[node]))
            children = [n for n in range(node + 1, len(tokens)) if parents[n] == node and tokens[n] == chosen[node]]
            node = children[0] if children else -1
        kept = data.draw(some.integers(1, len(path)))  # the row's limit may cut the path
        ended = path[kept - 1] == END
        output = answered(guides, committed(kept, Ending.STOP_ID if ended else Ending.OPEN))
        assert not output.faults and output.masking is not None and output.masking.masks == len(seen)
        assert output.masking.distinct == len({mask.tobytes() for mask in seen.values()})
        assert output.masking.forbidden == refused and output.forbidden.tolist() == [0, refused]
        answer += path[:kept]
        if ended:
            assert not guides.begin(step()), "a row that has ended chooses no more"
            return
    replay = fresh(vocabulary, grammar, answer).mask()
    assert np.array_equal(guides._rows[2].matcher.mask(), replay)


def _tree(draw: np.random.Generator, vocabulary: Vocabulary, grammar: Grammar, answer: list[int]) -> tuple[Any, Any]:
    """A random tree whose tokens are allowed, forbidden, or ends."""
    count = int(draw.integers(1, 9))
    tokens, parents, texts = [0], [0], [answer]
    for node in range(1, count):
        parent = int(draw.integers(0, node))
        token = int(draw.integers(0, vocabulary.size))
        kind = draw.random()
        try:
            if kind < 0.7:
                token = int(draw.choice(np.flatnonzero(fresh(vocabulary, grammar, texts[parent]).mask())))
            elif kind < 0.8:
                token = END
        except GrammarFailed:  # behind a forbidden token, or behind the end
            pass
        tokens.append(token)
        parents.append(parent)
        texts.append([*texts[parent], token])
    return np.array(tokens), np.array(parents)


def test_forced_tokens_begin_a_chain(vocabulary: Vocabulary) -> None:
    guides = started(vocabulary, Grammar(kind="regex", text="import numpy|import os"))
    forced = vocabulary.matcher(Grammar(kind="regex", text="import ")).forced()
    assert guides.begin(step())
    nodes = np.array([1, 5], np.int32)
    work = DecodeWork(bounds=nodes, nodes=nodes, depth=4, topk=1)
    found = guides.forced(work)
    assert found is not None and found.shape == (2, 4) and (found[0] == -1).all()
    count = int((found[1] >= 0).sum())
    assert count and found[1, :count].tolist() == forced[:count] and (found[1, count:] == -1).all()
    assert guides.forced(DecodeWork(bounds=nodes, nodes=nodes * 0 + 1, depth=4, topk=1)) is None
    free = started(vocabulary, Grammar(kind="regex", text="[a-z]+"))
    assert free.begin(step()) and free.forced(work) is None


def test_a_resumed_row_goes_on_where_it_was(vocabulary: Vocabulary) -> None:
    grammar = GRAMMARS[0]
    tokens: list[int] = []
    for _ in range(6):
        tokens.append(int(np.flatnonzero(fresh(vocabulary, grammar, tokens).mask())[0]))
    guides = started(vocabulary, grammar, tokens)
    assert np.array_equal(guides._rows[2].matcher.mask(), fresh(vocabulary, grammar, tokens).mask())


def test_json_may_be_indented_and_its_whitespace_ends(vocabulary: Vocabulary) -> None:
    schema = {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    grammar, tokenizer = Grammar(kind="json_schema", text=json.dumps(schema)), Tokenizer(HOME / "models/demo/target")

    def accepted(text: str) -> bool:
        matcher = vocabulary.matcher(grammar)
        for token in tokenizer.ids(text, add_special_tokens=False):
            if not matcher.allows(token):
                return False
            matcher.take(token)
        return matcher.allows(END)

    assert all(accepted(json.dumps([{"n": 1}, {}], indent=indent)) for indent in (None, 1, 2, 4))
    assert not any(accepted(text) for text in ('[\n\n{"n": 1}]', "[" + "\n" + 21 * " " + "{}]", "[  {}]"))


def test_padding_is_never_allowed(vocabulary: Vocabulary) -> None:
    mask = vocabulary.matcher(Grammar(kind="regex", text="(.|\n)*")).mask()
    assert mask.shape == (WIDTH,) and mask[:IDS].sum() > IDS - 96 and not mask[IDS:].any()


def test_a_row_without_a_grammar_of_its_own_is_free(vocabulary: Vocabulary) -> None:
    guides = started(vocabulary, GRAMMARS[0])
    assert guides.begin(step()) and guides.places == [1] and not guides.chooses(0)
    one = np.array([2], np.int32)
    columns = columns_of([SamplingParams()])
    nobody = RowStarts(one, one.astype(np.int64), columns, one, one, one, np.full((1, MAX_STOP_IDS), -1, np.int32))
    assert not guides.begin(step(nobody)), "the next owner of the row asked for no grammar"


def test_a_request_may_be_forgotten_before_its_row_starts(vocabulary: Vocabulary) -> None:
    """A lane hears of an abort at once, and of the plan before it in its turn."""
    guides = started(vocabulary, GRAMMARS[0])
    guides.forget(7)
    guides._building._building.submit(lambda: None).result(PATIENCE)
    one = np.array([2], np.int32)
    columns, stops = columns_of([SamplingParams()]), np.full((1, MAX_STOP_IDS), -1, np.int32)
    late = RowStarts(one, one.astype(np.int64), columns, one, one, one, stops, guides=np.array([7]), answers=[[]])
    assert not guides.begin(step(late))


def test_a_grammar_that_cannot_be_built_is_reported(vocabulary: Vocabulary) -> None:
    guides = Guides(lambda: vocabulary)
    for grammar in (Grammar(kind="regex", text="("), Grammar(kind="json_schema", text="{")):
        first, again = (prepared(guides, request, grammar) for request in (1, 2))
        assert first.error and again.error == first.error and not again.reused
    missing = Guides(lambda: Vocabulary.of_model(Path("/nowhere"), 8, (1,)))
    assert prepared(missing, 1, GRAMMARS[0]).error


class Exhausted:
    """A matcher at a limit."""

    def allows(self, token: int) -> bool:
        return False

    def words(self) -> bytes:
        raise GrammarFailed("the step took too much fuel")

    def forced(self) -> list[int]:
        return []

    def undo(self, count: int) -> None:
        assert count == 0


def test_a_blown_limit_is_the_fault_of_its_row(vocabulary: Vocabulary) -> None:
    guides = started(vocabulary, GRAMMARS[0])
    guides._rows[2].matcher = Exhausted()  # type: ignore[assignment]
    guides.walk(1, [0], [0], [5], lambda node, words: 0)
    assert answered(guides, committed(1)).faults == {1: "the step took too much fuel"}
    assert not guides.begin(step()), "the row must not choose in the step that was launched meanwhile"


def test_a_real_limit_is_noticed(vocabulary: Vocabulary) -> None:
    """Unread, it would look like a grammar that only allows the end."""
    rules = "\n".join(f'r{n}: "a" r{n} "{n}" | "a"' for n in range(2500))
    start = " | ".join(f"r{n}" for n in range(2500))
    matcher = vocabulary.matcher(Grammar(kind="lark", text=f"start: {start}\n{rules}"))
    with pytest.raises(GrammarFailed, match="items"):
        for _ in range(9):
            matcher.mask()
            matcher.take(vocabulary._tokens.tokenize_str("a")[0])


class Watched:
    """A vocabulary, and its matchers: where they are made and freed."""

    end_ids = frozenset({END})

    def __init__(self) -> None:
        self.made: list[tuple[str, int]] = []
        """Thread and niceness."""
        self.freed: queue.SimpleQueue[str] = queue.SimpleQueue()

    def matcher(self, _: Grammar) -> "WatchedMatcher":
        self.made.append((threading.current_thread().name, _niceness()))
        return WatchedMatcher(self.freed)


class WatchedMatcher:
    def __init__(self, freed: queue.SimpleQueue[str]) -> None:
        self._freed = freed

    def words(self) -> bytes:
        return b"1"

    def undo(self, count: int) -> None:
        assert count == 0

    def copy(self) -> "WatchedMatcher":
        return WatchedMatcher(self._freed)

    def __del__(self) -> None:
        self._freed.put(threading.current_thread().name)


def _niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_matchers_are_made_and_freed_beside_the_steps() -> None:
    """Those of a schema of 64 kB take a quarter of a second, and milliseconds."""
    watched = Watched()
    guides = started(cast(Vocabulary, watched), GRAMMARS[0], kept=KeptMatchers(entries=0))
    ((thread, niceness),) = watched.made
    assert thread.startswith("grammar") and (sys.platform != "linux" or niceness == min(19, _niceness() + 5))
    answered(guides, committed(0))
    guides.forget(7)
    guides.begin(step(starts_of(-1)))  # row 2 has a new owner
    freed = [watched.freed.get(timeout=PATIENCE) for _ in range(2)]
    assert all(name.startswith("freed-grammar") for name in freed)

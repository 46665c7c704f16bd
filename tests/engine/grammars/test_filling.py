"""Masks made beside a device: those of a fresh matcher, or missing, and a late row that only waits."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import hypothesis
import hypothesis.strategies as some
import numpy as np
import pytest

from aerie.contracts.grammar import Grammar
from aerie.contracts.step import Ending
from aerie.engine.grammars.filling import Filling
from aerie.engine.grammars.follower import Follower
from aerie.engine.grammars.matcher import GrammarFailed, Vocabulary
from aerie.engine.sampling.masks import FREE, MISSING, mask_words
from tests.engine.grammars.test_guides import (
    END,
    GRAMMARS,
    WIDTH,
    Exhausted,
    _tree,
    committed,
    fresh,
    started,
)


class Held(Executor):
    """Runs its tasks when the test says so."""

    def __init__(self) -> None:
        self.tasks: list[Callable[[], None]] = []

    def submit(self, task: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.tasks.append(lambda: future.set_result(task(*given, **named)))
        return future

    def run(self) -> None:
        while self.tasks:
            self.tasks.pop(0)()


class Step:
    """A step whose second row has a grammar and a tree; the first is free."""

    def __init__(self, row: Follower, nodes: int = 1, most: int = 64) -> None:
        self.pool = Held()
        self.words = np.zeros((most, mask_words(WIDTH)), np.int32)
        self.of = np.zeros(1 + nodes, np.int64)
        counts = np.array([1, nodes], np.int32)
        self.filling = Filling({1: row}, self.words, self.of, counts, np.array([0, 1], np.int32))

    def mask(self, node: int) -> np.ndarray:
        words = self.words[self.of[1 + node]].tobytes()
        return np.unpackbits(np.frombuffer(words, np.uint8), bitorder="little", count=WIDTH).view(np.bool_)


def follower(vocabulary: Vocabulary, grammar: Grammar) -> Follower:
    guides = started(vocabulary, grammar)
    return Follower(guides.step[1])


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(seed=some.integers(0, 2**32 - 1), grammar=some.sampled_from(GRAMMARS), steps=some.integers(1, 3))
def test_masks_of_trees_are_those_of_a_fresh_matcher(
    vocabulary: Vocabulary,
    seed: int,
    grammar: Grammar,
    steps: int,
) -> None:
    draw, row, answer = np.random.default_rng(seed), follower(vocabulary, grammar), []
    for _ in range(steps):
        tokens, parents = _tree(draw, vocabulary, grammar, answer)
        step = Step(row, len(tokens))
        step.filling.begin(step.pool)
        step.filling.grow(step.pool, np.stack([tokens, tokens]), np.stack([parents, parents]))
        step.pool.run()
        step.filling.finish(lambda: False)
        paths = {0: answer}
        for node in range(1, len(tokens)):
            above = paths.get(int(parents[node]))
            token = int(tokens[node])
            if above is not None and token != END and fresh(vocabulary, grammar, above).mask()[token]:
                paths[node] = [*above, token]
        for node in range(len(tokens)):
            if node in paths:
                assert np.array_equal(step.mask(node), fresh(vocabulary, grammar, paths[node]).mask())
            else:
                assert step.of[1 + node] == MISSING
        assert step.of[0] == FREE
        token = int(draw.choice(np.flatnonzero(step.mask(0))))
        output = committed(1, Ending.STOP_ID if token == END else Ending.OPEN)
        output.token_ids[1, 0] = token
        assert not step.filling.settled(output).faults
        if token == END:
            return
        answer.append(token)


def test_equal_masks_are_sent_once(vocabulary: Vocabulary) -> None:
    row = follower(vocabulary, Grammar(kind="regex", text="[a-z]+"))
    (a,), (b,) = (vocabulary._tokens.tokenize_str(letter) for letter in "ab")
    step = Step(row, 3)
    step.filling.begin(step.pool)
    step.filling.grow(step.pool, np.array([[0, 0, 0], [0, a, b]]), np.array([[0, 0, 0], [0, 0, 0]]))
    step.pool.run()
    assert step.filling.used == 2 and step.of[2] == step.of[3] != step.of[1]
    masking = step.filling.settled(committed(0)).masking
    assert (masking.masks, masking.distinct) == (3, 2)


def test_a_late_row_waits_alone_and_finds_its_mask_in_the_next_step(vocabulary: Vocabulary) -> None:
    row = follower(vocabulary, GRAMMARS[0])
    late = Step(row)
    late.filling.begin(late.pool)
    late.filling.finish(lambda: True)  # the device waits, and the first row can go on
    assert late.of.tolist() == [FREE, MISSING]
    output = late.filling.settled(committed(0))
    assert output.masking is not None and output.masking.late == 1 and not output.faults
    following = Step(row)
    following.filling.begin(following.pool)
    assert not following.pool.tasks, "the row still works for the step before"
    following.filling.finish(lambda: True)
    assert following.filling.settled(committed(0)).masking.late == 1
    late.pool.run()
    assert late.of[1] == MISSING, "the device has read the masks of that step"
    third = Step(row)
    third.filling.begin(third.pool)
    third.pool.run()
    third.filling.finish(lambda: True)
    assert np.array_equal(third.mask(0), fresh(vocabulary, GRAMMARS[0], []).mask())


def test_a_step_of_late_rows_alone_waits(vocabulary: Vocabulary) -> None:
    row = follower(vocabulary, GRAMMARS[0])
    step = Step(row)
    step.filling = Filling({0: row}, step.words, step.of, np.ones(1, np.int32), np.zeros(1, np.int32))
    step.filling.begin(step.pool)
    asked: list[bool] = []

    def over() -> bool:
        asked.append(True)
        if len(asked) == 3:
            step.pool.run()
        return True

    step.filling.finish(over)
    assert len(asked) >= 3 and step.of[0] >= 0


def test_what_finds_no_room_counts_as_not_drafted(vocabulary: Vocabulary) -> None:
    row = follower(vocabulary, Grammar(kind="regex", text="(a|x)(b|y)(c|z)a"))
    tokens = [0, *(vocabulary._tokens.tokenize_str(letter)[0] for letter in "abc")]
    step = Step(row, 4, most=2)
    step.filling.begin(step.pool)
    step.filling.grow(step.pool, np.array([tokens, tokens]), np.array([[0, 0, 1, 2]] * 2))
    step.pool.run()
    assert step.of.tolist() == [FREE, 0, 1, MISSING, MISSING]


def test_a_blown_limit_is_the_fault_of_its_row(vocabulary: Vocabulary) -> None:
    row = follower(vocabulary, GRAMMARS[0])

    class Blown(Exhausted):
        def words(self) -> bytes:
            raise GrammarFailed("the step took too much fuel")

    row.matcher = Blown()  # type: ignore[assignment]
    step = Step(row)
    step.filling.begin(step.pool)
    step.pool.run()
    step.filling.finish(lambda: True)
    output = step.filling.settled(committed(0))
    assert output.faults == {1: "the step took too much fuel"} and output.masking.late == 0
    assert row.guided.over


def test_a_limit_after_a_draft_harms_nobody(vocabulary: Vocabulary) -> None:
    """The target need not choose the draft; a matcher that has failed is of no more use."""
    row = follower(vocabulary, Grammar(kind="regex", text="[a-c]x"))
    (a,) = vocabulary._tokens.tokenize_str("a")
    take = row.matcher.take

    def blown(token: int) -> None:
        take(token)
        raise GrammarFailed("too many items")

    row.matcher.take = blown  # type: ignore[method-assign]
    step = Step(row, 2)
    step.filling.begin(step.pool)
    step.filling.grow(step.pool, np.array([[0, a]] * 2), np.array([[0, 0]] * 2))
    step.pool.run()
    step.filling.finish(lambda: True)
    assert step.of.tolist() == [FREE, 0, MISSING]
    assert not step.filling.settled(committed(0)).faults
    assert np.array_equal(row.matcher.mask(), step.mask(0))


@pytest.mark.parametrize("tokens", [[0], [0, END]])
def test_an_end_token_is_not_followed(vocabulary: Vocabulary, tokens: list[int]) -> None:
    row = follower(vocabulary, Grammar(kind="regex", text="a?"))
    step = Step(row, len(tokens))
    step.filling.begin(step.pool)
    step.filling.grow(step.pool, np.array([tokens] * 2), np.zeros((2, len(tokens)), np.int32))
    step.pool.run()
    assert step.mask(0)[END] and step.of[1:].tolist() == [0, MISSING][: len(tokens)]
    output = committed(1, Ending.STOP_ID)
    output.token_ids[1, 0] = END
    assert not step.filling.settled(output).faults and row.guided.over and not row.due


def test_equal_masks_share_a_place_and_those_that_differ_in_a_byte_do_not() -> None:
    """Only one byte in so many of a mask as long as this is hashed."""
    words, of = np.zeros((3, 4096), np.int32), np.zeros(5, np.int64)
    filling = Filling({}, words, of, np.zeros(0, np.int32), np.zeros(0, np.int32))
    masks = [bytearray(words[0].nbytes) for _ in range(4)]
    masks[1][-1] = masks[2][5] = masks[3][6] = 1
    assert [filling.put(place, bytes(masks[mask]), 0.0) for place, mask in enumerate([0, 1, 0, 2, 3])] == [
        *[True] * 4,
        False,
    ]
    assert of.tolist() == [0, 1, 0, 2, FREE] and filling.used == 3
    assert [words[place].tobytes() for place in range(3)] == [bytes(mask) for mask in masks[:3]]

"""Masks made ahead: those of a fresh matcher after what was committed, and what happens where one cannot be made."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from aerie.contracts.grammar import Grammar
from aerie.contracts.step import Ending, StepPlan
from aerie.engine.grammars.ahead import Ahead
from aerie.engine.grammars.guided import Guided
from aerie.engine.grammars.guides import Guides
from aerie.engine.grammars.matcher import GrammarFailed, Vocabulary
from tests.engine.grammars.test_guides import (
    END,
    GRAMMARS,
    WIDTH,
    answered,
    committed,
    fresh,
    prepared,
    starts_of,
    step,
)
from tests.patience import PATIENCE, until

FREE, AWAITED = "free", "awaited"


class Board:
    """What kernels would find."""

    def __init__(self) -> None:
        self.found: dict[int, str | bytes] = {}

    def put(self, row: int, words: bytes) -> None:
        self.found[row] = words

    def await_mask(self, row: int) -> None:
        self.found[row] = AWAITED

    def free(self, row: int) -> None:
        self.found[row] = FREE

    def await_free(self, row: int) -> None:
        until(lambda: self.found[row] == FREE, "the row is never free")

    def mask(self, row: int) -> np.ndarray:
        until(lambda: isinstance(self.found[row], bytes), "no mask comes")
        bits = np.frombuffer(bytes(self.found[row]), np.uint8)  # type: ignore[arg-type]
        return np.unpackbits(bits, bitorder="little")[:WIDTH].astype(bool)


def ahead_of(vocabulary: Vocabulary, grammar: Grammar, answer: list[int] | None = None) -> tuple[Guides, Board]:
    """Row 2 has the grammar."""
    guides, board = Guides(lambda: vocabulary), Board()
    guides.look_ahead(board)
    assert prepared(guides, 7, grammar).error is None
    assert guides.begin(step(starts_of(7, answer)))
    return guides, board


@pytest.mark.parametrize("grammar", GRAMMARS[:4])
def test_the_next_mask_follows_what_kernels_committed(vocabulary: Vocabulary, grammar: Grammar) -> None:
    guides, board = ahead_of(vocabulary, grammar)
    answer: list[int] = []
    for place in range(5):
        mask = board.mask(2)
        assert np.array_equal(mask, fresh(vocabulary, grammar, answer).mask())
        token = int(np.flatnonzero(mask)[place % mask.sum()])
        output = committed(1, Ending.STOP_ID if token == END else Ending.OPEN)
        output.token_ids[1] = token
        output = answered(guides, output)
        assert output.masking is not None and not output.faults
        assert (output.masking.masks, output.masking.choices, output.masking.distinct) == (1, 1, 1)
        if token == END:
            board.await_free(2)
            assert not guides.begin(step())
            return
        answer.append(token)
        assert guides.begin(step())
    guides.close()


def test_a_walk_waits_for_what_was_committed(vocabulary: Vocabulary) -> None:
    """Kernels ask for one below a root, and where a mask is not there yet."""
    grammar = Grammar(kind="regex", text="(ab|cd)e?")
    guides, board = ahead_of(vocabulary, grammar)
    (a, b, c, e) = (vocabulary._tokens.tokenize_str(text)[0] for text in "abce")
    chosen = [a, c]
    guides.walk(1, [0, a], [0, 0], chosen, lambda node, words: b)
    assert chosen == [a, b]
    answered(guides, committed(2))
    assert np.array_equal(board.mask(2), fresh(vocabulary, grammar, [a, b]).mask())
    assert guides.begin(step())
    chosen = [c]
    guides.walk(1, [0], [0], chosen, lambda node, words: e)
    assert chosen == [e]
    answered(guides, committed(1, Ending.STOP_ID))
    board.await_free(2)


def test_a_resumed_row_and_the_next_owner_begin_with_their_own_masks(vocabulary: Vocabulary) -> None:
    grammar = Grammar(kind="regex", text="xyz|xyw")
    (x,) = vocabulary._tokens.tokenize_str("x")
    guides, board = ahead_of(vocabulary, grammar, [x])
    assert np.array_equal(board.mask(2), fresh(vocabulary, grammar, [x]).mask())
    assert not guides.begin(step(starts_of(-1))) and board.found[2] == FREE


class Failing:
    def __init__(self, error: Exception) -> None:
        self._error = error
        self.begun, self.go = threading.Event(), threading.Event()

    def words(self) -> bytes:
        self.begun.set()
        self.go.wait()
        raise self._error

    def undo(self, count: int) -> None:
        assert count == 0


@pytest.mark.parametrize("error", [GrammarFailed("too much fuel"), RuntimeError("broken")])
def test_a_mask_that_cannot_be_made_is_the_fault_of_its_row(vocabulary: Vocabulary, error: Exception) -> None:
    guides, board = ahead_of(vocabulary, GRAMMARS[0])
    board.mask(2)
    failing = Failing(error)
    guided = Guided(2, failing, frozenset({END}), filtered=False)  # type: ignore[arg-type]
    guides._rows[2] = guided
    assert guides.begin(step()) and guides._ahead is not None
    guides._ahead.begin(guided)
    assert board.found[2] == AWAITED
    failing.go.set()
    guides.walk(1, [0], [0], [5], lambda node, words: 0)
    assert answered(guides, committed(1)).faults == {1: str(error)}
    board.await_free(2)
    assert not guides.begin(step())


def test_one_failure_does_not_keep_others_from_their_masks(vocabulary: Vocabulary) -> None:
    board, failing = Board(), Failing(ValueError("broken"))
    failing.go.set()
    rows = [Guided(0, failing, frozenset(), False), Guided(1, vocabulary.matcher(GRAMMARS[1]), frozenset(), False)]  # type: ignore[arg-type]
    ahead = Ahead(board)
    for row in rows:
        ahead.begin(row)
    assert board.mask(1).any() and board.found[0] == AWAITED
    with pytest.raises(GrammarFailed, match="broken"):
        rows[0].wait()
    ahead.close()


def test_a_step_without_grammars_is_answered_after_those_before_it(vocabulary: Vocabulary) -> None:
    guides, board = ahead_of(vocabulary, GRAMMARS[0])
    board.mask(2)
    failing = Failing(GrammarFailed("slow"))
    assert guides._ahead is not None
    guides._ahead.begin(Guided(4, failing, frozenset(), False))  # type: ignore[arg-type]
    assert failing.begun.wait(PATIENCE)
    answers: list[int] = []

    def answer(number: int, plan: StepPlan, *, guided: bool) -> None:
        assert guides.begin(plan) == guided
        guides.answer(lambda: replace(committed(0), number=number), lambda read: answers.append(read().number))

    answer(0, step(), guided=True)
    other = replace(step(), rows=np.array([0, 5], np.int32))
    second = threading.Thread(target=answer, args=(1, other), kwargs={"guided": False})
    second.start()
    second.join(0.05)
    assert not answers
    failing.go.set()
    second.join(PATIENCE)
    assert answers == [0, 1]
    guides.close()

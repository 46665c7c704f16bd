"""How long answers are expected to be, by those that have ended."""

import numpy as np
import pytest

from aerie.contracts.step import Ending, StepOutput
from aerie.scheduler.planner.answers import Answers


def output(lengths, endings):
    ones = np.ones(len(lengths), dtype=np.int32)
    lengths, endings = np.array(lengths, dtype=np.int32), np.array(endings, dtype=np.int32)
    return StepOutput(0, ones[:, None], ones, 0 * ones, 0 * ones, lengths, endings)


def settled(answers, lengths, endings, *, times=1, live=None):
    rows = np.arange(len(lengths))
    for _ in range(times):
        answers.settle(rows, np.ones(len(rows), bool) if live is None else np.array(live), output(lengths, endings))
    return answers


def test_the_answers_that_end_are_learned_and_no_others():
    answers = Answers(3)
    for row in range(3):
        answers.begin(row, 10 * row)
    before = answers.expected(1000)
    settled(answers, [500, 500, 500], [0, 0, 0], times=100)
    settled(answers, [500, 500, 500], [0, Ending.STOP_ID, 0], times=100, live=[True, False, True])
    assert answers.expected(1000) == before
    settled(answers, [900, 60, 40], [0, Ending.STOP_ID, Ending.STOP_ID], times=200)
    assert answers.expected(1000) == pytest.approx(35, abs=8)


def test_no_answer_is_longer_than_its_limit():
    answers = settled(Answers(1), [400], [Ending.STOP_ID], times=200)
    assert answers.expected(1000) == pytest.approx(400, rel=0.05)
    assert answers.expected(16) == 16

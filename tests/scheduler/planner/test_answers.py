"""How long answers are expected to be, by those that have ended."""

import pytest

from aerie.scheduler.planner.answers import Answers


def after(*lengths):
    answers = Answers()
    for tokens in lengths:
        answers.end(tokens)
    return answers


def test_the_answers_that_end_are_learned():
    assert after().expected(1000) == after().expected(10**6) > 0
    assert after(*[50, 20] * 200).expected(1000) == pytest.approx(35, abs=8)


def test_no_answer_is_longer_than_its_limit():
    answers = after(*[400] * 200)
    assert answers.expected(1000) == pytest.approx(400, rel=0.05)
    assert answers.expected(16) == 16

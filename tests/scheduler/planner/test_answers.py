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


def test_the_last_step_of_an_answer_commits_half():
    lengths = range(25, 33)
    steps = sum(-(-length // 4) for length in lengths)
    answers = after(*[*lengths] * 100)
    assert answers.kept(4.0) == pytest.approx(sum(lengths) / (4 * steps), rel=0.01)
    assert answers.kept(1.0) == 1.0

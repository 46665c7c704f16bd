"""Settled steps: times joined with those of the next step."""

from dataclasses import replace

import numpy as np
import pytest

from aerie.contracts.step import PrefillWork
from aerie.scheduler.planner.samples import SettledSteps
from tests.scheduler.planner.planners import step


def test_a_steps_extend_and_pause_are_joined_with_it():
    steps = SettledSteps()
    steps.take(*step(0, 1, began=1.0, ended=2.0, verify=0.1), waited=False)
    steps.take(*step(1, 2, began=2.5, ended=3.0, extend=0.2, verify=0.3), waited=True)
    steps.take(*step(2, 1, began=3.5, ended=4.0, decodes=False, verify=0.3), waited=True)
    steps.take(*step(5, 3, began=9.0, ended=9.5, verify=0.3), waited=True)
    steps.take(*step(6, 4, began=9.5, ended=9.9, verify=0.3), waited=True)
    assert [(one.rows, one.phases, one.gap) for one in steps.whole] == [
        (1, {"verify": 0.1, "extend": 0.2}, None),
        (2, {"verify": 0.3}, 0.5),
        (3, {"verify": 0.3}, None),
    ]


def test_what_passes_beside_the_phases_is_the_hosts_wherever_it_falls():
    steps = SettledSteps()
    steps.take(*step(0, 2, 1, ended=1.0, verify=0.1), waited=True)
    steps.take(*step(1, 2, 1, began=1.0, ended=2.0, extend=0.2, draft=0.1, verify=0.3), waited=True)
    steps.take(*step(2, 1, 1, began=2.0, ended=2.1, verify=0.3), waited=True)
    steps.take(*step(3, 1, 1), waited=True)
    assert [one.gap for one in steps.whole] == [None, pytest.approx(0.4), 0.0]


def test_head_kv_of_prompts_takes_what_the_next_step_says():
    steps, (plan, rows, live, output) = SettledSteps(), step(0, 3, decodes=False, prefill=0.2)
    counts = np.array([5, 7, 9], dtype=np.int32)
    read = PrefillWork(np.zeros(21, dtype=np.int32), 0 * counts, counts, counts > 0, counts)
    drafting = np.array([False, True, True])
    steps.take(replace(plan, prefill=read, drafting=drafting), rows, live, output, waited=True)
    steps.take(*step(1, 2, extend=0.3, verify=0.1), waited=True)
    steps.take(*step(2, 2, 1, extend=0.4, verify=0.1), waited=True)
    assert steps.kept == [(16, 0.3)]


def decoded(steps, *, after_prompts, count=1, number=0):
    """Takes `count` decode steps, each after a step of prompts or after one that decoded."""
    for _ in range(count):
        if after_prompts:
            steps.take(*step(number, 2, decodes=False, ended=1.0, prefill=0.1), waited=True)
            number += 1
        steps.take(*step(number, 2, ended=1.0, verify=0.1), waited=True)
        number += 1
    return number


def test_a_step_after_prompts_says_nothing_of_what_others_take():
    steps = SettledSteps()
    number = decoded(steps, after_prompts=False, count=2)
    number = decoded(steps, after_prompts=True, number=number)
    decoded(steps, after_prompts=False, count=2, number=number)
    assert [one.usual for one in steps.whole] == [True, True, False, True]


def test_where_nearly_all_steps_come_after_prompts_they_are_the_usual_ones():
    steps, found, number = SettledSteps(), [], 0
    for _ in range(400):
        number = decoded(steps, after_prompts=True, number=number)
        assert steps._last is not None
        found.append(steps._last.usual)
    assert not any(found[:100]) and all(found[-100:])

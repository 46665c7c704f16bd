"""What steps of any numbers of rows show of drafts: accepted nodes of rows that have not ended, and drafted levels."""

import numpy as np

from aerie.scheduler.planner.accepted import labels_of, levels_of
from tests.scheduler.planner.planners import settled


def drafts(*each):
    return [step.drafts for step in settled(*each)]


def test_each_row_that_drafted_and_goes_on_has_a_label() -> None:
    """The first row drafts nothing, and the last one of four has ended."""
    labels = labels_of(drafts((4, 2, 1.0, 0.1), (2, 3, 1.0, 0.1), (4, 3, 1.0, 0.1)))
    assert labels.rows.tolist() == [6, 7, 6, 6, 7] and labels.accepted.tolist() == [1] * 5
    assert labels.planned.tolist() == [2, 2, 3, 3, 3]


def test_a_row_with_a_new_owner_has_none() -> None:
    steps = drafts((4, 2, 1.0, 0.1), (2, 3, 1.0, 0.1))
    steps[0].live[1] = False
    assert labels_of(steps).rows.tolist() == [7, 6]


def test_a_label_is_of_what_the_step_could_draft() -> None:
    """Rows that end soon are planned fewer nodes than the step has levels, others more."""
    [step] = drafts((3, 2, 1.0, 0.1))
    step.work.nodes[:] = [1, 2, 9]
    step.output.endings[:] = 0
    assert labels_of([step]).planned.tolist() == [1, 2]


def test_levels_are_those_of_the_row_that_drafted_most() -> None:
    steps = drafts((4, 2, 1.0, 0.1), (2, 3, 1.0, 0.1), (3, 6, 1.0, 0.1))
    steps[1].output.drafted[:] = [0, 1]
    planned, drafted = levels_of(steps)
    assert planned.tolist() == [2, 3, 6] and drafted.tolist() == [2, 1, 6]
    assert planned.dtype == np.int32

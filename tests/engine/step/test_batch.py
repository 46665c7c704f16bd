"""What the host notes about the needs of rows, so that a step does no work that none of its rows needs."""

from dataclasses import fields

import numpy as np
import pytest

from aerie.contracts.sampling import COLUMNS, MAX_STOP_IDS, SamplingParams, columns_of
from aerie.contracts.step import DecodeWork, RowStarts, StepKind, StepPlan
from aerie.engine.sampling.choose import FILTER_COLUMNS, Needs
from aerie.engine.step.batch import RowNeeds
from tests.sampling_values import OTHERS


def needs_of(*rows: SamplingParams) -> list[Needs]:
    """Of each row, and last of all together."""
    index, ones = np.arange(len(rows), dtype=np.int32), np.ones(len(rows), np.int32)
    starts = RowStarts(
        rows=index,
        noise_keys=np.ones(len(rows), np.int64),
        sampling=columns_of(rows),
        prompt_lengths=ones,
        limits=99 * ones,
        min_lengths=np.array([1 + row.min_tokens for row in rows], np.int32),
        stop_ids=np.full((len(rows), MAX_STOP_IDS), -1, np.int32),
    )
    work = DecodeWork(bounds=ones, nodes=ones, depth=0, topk=1)
    noted = RowNeeds(len(rows))
    noted.note(StepPlan(0, StepKind.DECODE, index, 0 * index, index > 0, None, work, starts))
    return [*(noted.of(index[row : row + 1]) for row in index), noted.of(index)]


def test_each_need_of_a_row_is_noted() -> None:
    greedy, sampled = SamplingParams(temperature=0.0), SamplingParams(temperature=0.3)
    banned = SamplingParams(temperature=0.0, min_tokens=2)
    assert needs_of(greedy, sampled, banned) == [
        Needs(noise=False, filters=False, bans=False),
        Needs(noise=True, filters=False, bans=False),
        Needs(noise=False, filters=False, bans=True),
        Needs(noise=True, filters=False, bans=True),
    ]


NEEDS = {name: field.need for name, field in COLUMNS.items() if field.need is not None}


def test_needs_are_flags_and_filters_are_what_the_choice_reads() -> None:
    assert set(NEEDS.values()) <= {flag.name for flag in fields(Needs)}
    assert {name for name, need in NEEDS.items() if need == "filters"} == set(FILTER_COLUMNS)


@pytest.mark.parametrize("name", NEEDS)
def test_a_value_that_is_not_neutral_is_a_need(name: str) -> None:
    """Of greedy rows too, but for filters: they leave the likeliest token."""
    need, changed = NEEDS[name], {name: OTHERS[name]}
    assert getattr(needs_of(SamplingParams(**changed))[0], need)
    assert getattr(needs_of(SamplingParams(temperature=0.0, **changed))[0], need) == (need != "filters")
    assert not getattr(needs_of(SamplingParams())[0], need)

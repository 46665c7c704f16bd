"""What the host notes about the needs of rows, so that a step does no work that none of its rows needs."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from aerie.contracts.sampling import COLUMNS, MAX_STOP_IDS, SamplingParams, columns_of
from aerie.contracts.step import DecodeWork, RowStarts, StepKind, StepPlan
from aerie.engine.sampling.choose import FILTER_COLUMNS, Needs
from aerie.engine.step.batch import RowNeeds


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


CHANGED: dict[str, Any] = {"top_p": 0.5, "top_k": 1, "min_p": 0.01}


def test_every_column_with_a_need_is_tried_here() -> None:
    assert CHANGED.keys() == {name for name, field in COLUMNS.items() if field.need is not None}
    assert {field.need for field in COLUMNS.values()} - {None} <= {flag.name for flag in fields(Needs)}
    assert set(FILTER_COLUMNS) == {name for name, field in COLUMNS.items() if field.need == "filters"}


@pytest.mark.parametrize("name", CHANGED)
def test_a_value_that_is_not_neutral_is_a_need_of_rows_that_sample(name: str) -> None:
    assert needs_of(SamplingParams(**{name: CHANGED[name]}))[0].filters
    assert not needs_of(SamplingParams(temperature=0.0, **{name: CHANGED[name]}))[0].filters

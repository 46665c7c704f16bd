"""A row's tables hold what its owner asked for, until the next owner."""

import numpy as np
import torch

from aerie.contracts.sampling import COLUMNS, MAX_STOP_IDS, SamplingParams, columns_of
from aerie.contracts.step import RowStarts
from aerie.engine.state.row_tables import RowTables
from aerie.engine.state.transfer import HostTransfer
from tests.sampling_values import OTHERS


def start(tables: RowTables, row: int, sampling: SamplingParams) -> None:
    one = np.ones(1, np.int32)
    starts = RowStarts(
        rows=row * one,
        noise_keys=np.ones(1, np.int64),
        sampling=columns_of([sampling]),
        prompt_lengths=one,
        limits=9 * one,
        min_lengths=one,
        stop_ids=np.full((1, MAX_STOP_IDS), -1, np.int32),
    )
    tables.staged_start(starts, HostTransfer())()


def test_every_field_of_the_table_has_a_column() -> None:
    tables = RowTables(3, 2, 16)
    assert tables.sampling.keys() == COLUMNS.keys()
    for name, column in tables.sampling.items():
        assert column.shape == (4,) and column.is_contiguous()
        assert column.dtype == {np.float32: torch.float32, np.int32: torch.int32}[COLUMNS[name].dtype]
        assert column.unique().tolist() == [0.0 if name == "temperature" else COLUMNS[name].neutral]


def test_an_owner_s_values_stay_until_the_next_owner() -> None:
    tables = RowTables(3, 2, 16)
    start(tables, 1, SamplingParams(**OTHERS))
    start(tables, 2, SamplingParams())
    for name, value in OTHERS.items():
        assert tables.sampling[name][1:3].tolist() == [value, COLUMNS[name].neutral]
    start(tables, 1, SamplingParams())
    assert all(tables.sampling[name][1] == field.neutral for name, field in COLUMNS.items())

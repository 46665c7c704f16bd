"""The cut of a run of committed tokens equals a loop that looks at one token after the other."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from aerie.contracts.step import Ending
from aerie.engine.bindings import Kernels
from aerie.engine.sampling.ending import cut
from aerie.engine.state.row_tables import RowTables


def tables(stops: list[list[int]], limits: list[int]) -> RowTables:
    made = RowTables(len(limits), 2, 16)
    for row, (ids, limit) in enumerate(zip(stops, limits, strict=True)):
        made.limits[row] = limit
        made.stop_ids[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
    return made


def one_by_one(run: list[int], known: int, stops: list[int], limit: int) -> tuple[int, Ending]:
    for place, token in enumerate(run):
        if token in stops:
            return place + 1, Ending.STOP_ID
        if known + place + 1 >= limit:
            return place + 1, Ending.LENGTH
    return len(run), Ending.OPEN


ROWS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 5), min_size=1, max_size=6),  # what was committed
        st.integers(1, 40),  # tokens known before
        st.lists(st.integers(0, 5), max_size=2),  # stop ids
        st.integers(1, 8),  # room up to the limit
        st.booleans(),  # done before
    ),
    min_size=1,
    max_size=5,
)


@given(ROWS)
def test_cut_equals_a_loop(kernels: Kernels, rows: list[tuple[list[int], int, list[int], int, bool]]) -> None:
    width = max(len(run) for run, *_ in rows)
    # Past a row's count stands an id that some row stops at: it must not be looked at.
    tokens = torch.tensor([run + [0] * (width - len(run)) for run, *_ in rows])
    counts = torch.tensor([len(run) for run, *_ in rows])
    known = torch.tensor([length for _, length, *_ in rows])
    done = torch.tensor([over for *_, over in rows])
    made = tables([stops for _, _, stops, _, _ in rows], [length + room for _, length, _, room, _ in rows])
    result = kernels[cut](tokens, counts, known, done, torch.arange(len(rows)), made)
    for row, (run, length, stops, room, over) in enumerate(rows):
        expected = (0, Ending.OPEN) if over else one_by_one(run, length, stops, length + room)
        assert (int(result.counts[row]), int(result.endings[row])) == expected


def test_the_dummy_row_never_ends(kernels: Kernels) -> None:
    made = tables([[1]], [5])
    result = kernels[cut](
        torch.tensor([[1]]), torch.tensor([1]), torch.tensor([10**6]), torch.tensor([False]), *_dummy(made)
    )
    assert result.endings.tolist() == [Ending.OPEN]


def _dummy(made: RowTables) -> tuple[torch.Tensor, RowTables]:
    return torch.tensor([made.dummy_row]), made

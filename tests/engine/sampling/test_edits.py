"""Edited logits of every node are those that a recount of its text gives, bit for bit, whatever computes them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aerie.contracts.sampling import EDITING, SamplingParams, columns_of
from aerie.engine.sampling.edits import edit
from aerie.engine.state.edit_tables import EditTables
from aerie.engine.state.row_tables import RowTables
from aerie.engine.state.transfer import HostTransfer
from tests.engine.triton_here import needs_triton
from tests.native.cpp_here import needs_cpp
from tests.recount import recounted, starts_of

VOCABULARY = 150
Edit = Callable[[Tensor, Tensor, RowTables, Tensor | None], Tensor]


def native(*given: Any) -> Tensor:
    from aerie.native.kernels.edits import edit as kernel

    return kernel(*given)


def triton(*given: Any) -> Tensor:
    from aerie.engine.kernels.edits import edit as kernel

    return kernel(*given)


EDITS = [
    pytest.param(edit, id="torch"),
    pytest.param(native, id="cpp", marks=needs_cpp),
    pytest.param(triton, id="triton", marks=needs_triton),
]
TOKENS = st.integers(0, VOCABULARY - 1)
FEW = st.integers(0, 7)
"""Tokens that come again."""
PARAMS = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7, 1e-6]),
    frequency_penalty=st.sampled_from([0.0, 0.1, -1.7]),
    presence_penalty=st.sampled_from([0.0, 0.3, -2.0]),
    logit_bias=st.dictionaries(TOKENS | FEW, st.floats(-100, 100, width=32), max_size=9),
    allowed_token_ids=st.none() | st.lists(FEW, min_size=1).map(tuple),
    banned_token_ids=st.lists(TOKENS | FEW, max_size=3).map(tuple),
)
TEXTS = st.lists(FEW | TOKENS, max_size=12)


def tables_of(rows: list[tuple[SamplingParams, list[int], list[int]]], committed: list[list[int]]) -> RowTables:
    """Rows with these parameters, prompts and answers at their start, that have since committed more."""
    tables = RowTables(4, 1, 16, edits=EditTables(4, 3, VOCABULARY))
    tables.edits.counts.fill_(0x5A5A5A5A)  # what former owners left
    tables.edits.biases.fill_(7.0)
    for name, values in columns_of([params for params, _, _ in rows]).items():
        tables.sampling[name][: len(rows)] = torch.from_numpy(values)
    starts = starts_of(rows, range(len(rows)), VOCABULARY)
    tables.edits.staged_start(starts, torch.arange(len(rows)), HostTransfer())()
    width = max(map(len, committed), default=0)
    padded = [own + [3] * (width - len(own)) for own in committed]
    tokens = torch.tensor(padded, dtype=torch.int64).view(len(rows), width)
    tables.edits.count(torch.arange(len(rows)), tokens, torch.tensor([len(own) for own in committed]))
    return tables


@pytest.mark.parametrize("implementation", EDITS)
@settings(max_examples=25)
@given(data=st.data())
def test_every_node_is_edited_as_its_text_says(implementation: Edit, data: st.DataObject) -> None:
    """Trees of several rows; nodes repeat tokens of prompt, answer and ancestors."""
    rows = data.draw(st.lists(st.tuples(PARAMS, TEXTS, TEXTS), min_size=1, max_size=2))
    committed = [data.draw(TEXTS) for _ in rows]
    tables = tables_of(rows, committed)
    owners, paths, texts = [], [], []
    for row, (_, _, answer) in enumerate(rows):
        drafted = data.draw(st.lists(FEW, max_size=5))
        parents = [data.draw(st.integers(0, node)) for node in range(len(drafted))]  # nodes 1 .. ; node 0 is the root
        for node in range(len(drafted) + 1):
            above, place = [-1] * 6, node
            while place:
                above[place] = drafted[place - 1]
                place = parents[place - 1]
            owners.append(row)
            paths.append(above)
            texts.append([*answer, *committed[row], *(token for token in above if token >= 0)])
    seed = data.draw(st.integers(0, 99))
    logits = 30 * torch.randn(len(owners), VOCABULARY, generator=torch.Generator().manual_seed(seed))
    raw = logits.clone()
    found = implementation(logits, torch.tensor(owners), tables, torch.tensor(paths))
    assert torch.equal(logits, raw), "log probabilities are taken of the raw logits afterwards"
    for node, (row, text) in enumerate(zip(owners, texts, strict=True)):
        params, prompt, _ = rows[row]
        np.testing.assert_array_equal(found[node].numpy(), recounted(raw[node].numpy(), prompt, text, params))


@pytest.mark.parametrize("implementation", EDITS)
def test_rows_without_a_slot_keep_their_logits(implementation: Edit) -> None:
    penalized = SamplingParams(frequency_penalty=1.5, logit_bias={4: -3.0})
    tables = tables_of([(penalized, [1], [2]), (SamplingParams(), [1], [2])], [[5], [5, 6]])
    logits = torch.randn(2, VOCABULARY)
    found = implementation(logits, torch.tensor([1, 0]), tables, None)
    assert torch.equal(found[0], logits[0])
    np.testing.assert_array_equal(found[1].numpy(), recounted(logits[1].numpy(), [1], [2, 5], penalized))


def test_a_new_owner_without_edits_leaves_the_slot() -> None:
    tables = tables_of([(SamplingParams(frequency_penalty=1.5), [1], [2])], [[5]])
    assert tables.edits.slots[0] == 0
    tables.edits.staged_start(None, torch.tensor([0]), HostTransfer())()
    assert tables.edits.slots.tolist() == [tables.edits.dummy] * 5


def test_each_column_that_edits_is_read() -> None:
    """A column that the table adds and `edit` forgets would change nothing."""
    logits = torch.full((1, VOCABULARY), 2.0)
    for name in EDITING:
        tables = tables_of([(SamplingParams(**{name: 1.5}), [1], [2, 2])], [[]])
        assert edit(logits, torch.tensor([0]), tables, None)[0, 2] != 2.0, name

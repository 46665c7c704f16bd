"""A drafter without head, taps, seeds or pool: the round, its worker and the C++ steps know the protocol only."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from aerie.contracts.sampling import SamplingParams
from aerie.contracts.spec_section import SpecConfig
from aerie.engine.state.row_tables import RowTables
from aerie.native.structs.draft import drafts_with
from aerie.native.structs.head import native_head
from aerie.spec.drafters.drafter import Growth, Needs, Pairs, Roots, recordable
from aerie.spec.drafters.eagle3 import Eagle3
from aerie.spec.drafters.registry import KINDS
from aerie.spec.round.round import Round
from aerie.spec.trees.ranking import Ranking
from aerie.spec.trees.tree import Tree, chain
from aerie.spec.worker import SpecWorker
from tests.engine.rounds import Rounds
from tests.spec.toys import Crowd, toy_state, toy_worker

ROWS, VOCABULARY = 3, 8


class PromptLookup:
    """Drafts what came after the last earlier occurrence of the root in the row's own text."""

    draft_to_target = None
    bytes = kv_bytes = 0

    def __init__(self, slots: int) -> None:
        self.needs = Needs(
            taps=(),
            seed_width=0,
            kv_numbers=0,
            draft_vocabulary=VOCABULARY,
            scratch_slots=lambda topk, depth: 0,
        )
        self.texts = torch.zeros(slots, dtype=torch.int64)
        """Token x_(j+1) at the slot of position j."""

    def extend(self, pairs: Pairs) -> Tensor:
        assert pairs.taps.shape == (len(pairs.tokens), 0)
        self.texts[pairs.slots] = pairs.tokens
        return torch.zeros(len(pairs.lasts), 0)

    def draft(self, tables: RowTables, roots: Roots, growth: Growth, ranking: Ranking) -> Tree:
        rows, width = len(roots.tokens), tables.pages.shape[1] * tables.page_size
        positions = torch.arange(width).expand(rows, width)
        slots = tables.slots(roots.owners[:, None].expand(rows, width).reshape(-1), positions.reshape(-1))
        texts, lengths = self.texts[slots].view(rows, width), roots.lengths[:, None]
        earlier = (texts == roots.tokens[:, None]) & (positions < lengths - 1)
        last = torch.where(earlier, positions, 0).max(1, keepdim=True).values
        after = (last + torch.arange(1, growth.depth + 1)).minimum(lengths - 1)
        return chain(torch.cat((roots.tokens[:, None], texts.gather(1, after)), 1)[:, : growth.widest])


def lookup_worker(table: Tensor, **spec: Any) -> SpecWorker:
    state = toy_state(table, ROWS, seed_width=0)
    drafter = PromptLookup(state.target.pool.slots(0).shape[0])
    return SpecWorker(Round(state, drafter, SpecConfig(**spec)))


@pytest.mark.parametrize("shape", [{"depth": 4, "topk": 1, "nodes": 5}, {"depth": 3, "topk": 2, "nodes": 9}])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_equal_those_of_plain_decoding(shape: dict[str, int], temperature: float) -> None:
    table = torch.eye(VOCABULARY).roll(1, 1) * 5  # token t + 1 is likely after t
    texts = [
        Crowd(worker, ROWS, temperature, prompts=ROWS).tokens(25, **own)
        for worker, own in ((toy_worker(table, None, ROWS), {}), (lookup_worker(table), shape))
    ]
    assert np.array_equal(*texts)


def test_a_text_that_repeats_itself_is_accepted_to_the_full_depth() -> None:
    rounds = Rounds(lookup_worker(torch.eye(VOCABULARY).roll(1, 1) * 9))
    params = SamplingParams(temperature=0.0, max_tokens=40)
    rows = [rounds.add(index, [index, 5], params, drafting=index != 1) for index in range(ROWS)]
    while rows[0].length < 2 * VOCABULARY:
        rounds.decode(rows, depth=3, topk=1, nodes=4)
    output = rounds.decode(rows, depth=3, topk=1, nodes=4)
    assert output.accepted.tolist() == [3, 0, 3] and output.counts.tolist() == [4, 1, 4]


def test_neither_graphs_nor_whole_steps_take_a_drafter_that_they_do_not_know() -> None:
    drafter = PromptLookup(8)
    assert not recordable(drafter)
    assert native_head(drafter) is None and not drafts_with(drafter)

    class Another(Eagle3):
        """Drafts otherwise."""

    another: Any = Eagle3.__new__(Another)
    assert not drafts_with(another) and drafts_with(Eagle3.__new__(Eagle3))


def test_every_kind_has_a_name_of_its_own_and_the_last_takes_any_folder(tmp_path: Path) -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    assert [kind.recognizes(tmp_path) for kind in KINDS] == [*[False] * (len(KINDS) - 1), True]

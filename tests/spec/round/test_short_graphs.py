"""Recordings for short rows, which attention does not split, and page lists that all passes of a step read."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from torch import Tensor

from aerie.contracts.sampling import SamplingParams
from aerie.engine.attention.inputs import AttentionInputs, FixedPages
from aerie.engine.lanes.cuda import CudaLane
from aerie.engine.step.graph_pass import GraphPages
from tests.engine.lanes.test_lanes import Stepping
from tests.engine.rounds import Rounds
from tests.engine.stand_in import HeldDense, StandIn
from tests.spec.conftest import MakeWorker
from tests.spec.round.test_graphs import PROMPTS, SHAPES, answers

SHORT = 16
"""Positions, one page: all rows begin there or cross it."""


@dataclass
class Seen:
    """Pages of the rows of each replay, by whether its plans may split."""

    of: dict[bool, list[int]] = field(default_factory=lambda: {True: [], False: []})


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, stand_in: StandIn) -> Seen:
    """Attention that splits, and rows that are long soon."""
    found, hold, renew = Seen(), HeldDense.hold, HeldDense.renew
    kept: list[tuple[Any, bool]] = []

    def held(self: HeldDense, inputs: AttentionInputs, pages: FixedPages, *, split: bool) -> Any:
        kept.append((hold(self, inputs, pages, split=split), split))
        return kept[-1][0]

    def renewed(self: HeldDense, planned: Any, kv_indptr: Tensor) -> None:
        renew(self, planned, kv_indptr)
        split = next(split for plan, split in kept if plan is planned)
        found.of[split].append(int(kv_indptr.diff().max()))

    monkeypatch.setattr(HeldDense, "hold", held)
    monkeypatch.setattr(HeldDense, "renew", renewed)
    monkeypatch.setattr(HeldDense, "splits", lambda self, rows, queries: rows < 4)
    monkeypatch.setattr("aerie.engine.step.graph_pass.SHORT", SHORT)
    return found


@pytest.mark.parametrize("shape", [*SHAPES, "off"])
def test_short_rows_replay_recordings_of_their_own(
    make_worker: MakeWorker, seen: Seen, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rows are recorded twice, four once."""
    own: dict[str, Any] = SHAPES.get(shape, {"head": "none"})
    planned = SHAPES.get(shape, {"depth": 0, "topk": 1, "nodes": 1})
    worker = make_worker(**own)
    families = 1 if shape == "off" else 3 + 1
    assert worker.capacity.report["graphs"] == (2 + 1) * 4 * families
    for pages in seen.of.values():
        pages.clear()
    drafting = (shape != "off",) * 4
    replayed = answers(Stepping(CudaLane(worker)), planned, drafting=drafting)
    page = worker.capacity.page_size
    assert seen.of[False] and max(seen.of[False]) * page <= SHORT
    assert max(seen.of[True]) * page > SHORT
    monkeypatch.undo()
    assert replayed == answers(make_worker(**own), planned, drafting=drafting)


def test_passes_of_a_round_share_a_page_list(
    make_worker: MakeWorker, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill, filled = GraphPages.fill, list[int]()

    def counted(self: GraphPages, rows: Tensor, covered: Any) -> None:
        filled.append(rows.numel())
        fill(self, rows, covered)

    worker = make_worker(**SHAPES["tree"])
    monkeypatch.setattr(GraphPages, "fill", counted)
    rounds = Rounds(worker)
    row = rounds.add(0, list(PROMPTS[0]), SamplingParams(temperature=0, max_tokens=9), drafting=True)
    rounds.decode([row], **SHAPES["tree"])
    assert filled == [2], "once for draft, verify and extend"

"""Replayed rounds commit what eager ones do: on a stand-in for CUDA graphs, no GPU having run them."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from aerie.contracts.sampling import SamplingParams
from aerie.contracts.shape import DraftShape
from aerie.contracts.spec_section import LoadShape, SpecConfig
from aerie.contracts.step import StepOutput, StepPlan
from aerie.engine.lanes.cuda import CudaLane
from aerie.engine.state.edit_tables import IN_PROMPT
from aerie.engine.step.graph_pass import GraphPass
from aerie.engine.step.graphs import Family, Graphs, bucket_for, row_buckets
from aerie.spec.round.buckets import planned_shapes
from aerie.spec.worker import SpecWorker
from tests.engine.lanes.test_lanes import Stepping
from tests.engine.rounds import Rounds, Row
from tests.engine.stand_in import HeldDense, NoWaits, StandIn, Streams
from tests.spec.conftest import MakeWorker

PROMPTS = ([1, 2, 3, 4, 5, 6, 7], [9, 8], list(range(20, 43)), [60])
SHAPES = {"chain": {"depth": 3, "topk": 1, "nodes": 4}, "tree": {"depth": 3, "topk": 3, "nodes": 9}}


EDITS: dict[str, Any] = {"frequency_penalty": 1.5, "repetition_penalty": 1.3, "logit_bias": {3: 2.0}}


def answers(
    worker: Any, shape: dict[str, int], *, drafting: tuple[bool, ...] = (True,) * 4, edits: bool = False
) -> list[list[int]]:
    """Rows of every kind that graphs know and of some that they do not; they end one by one."""
    params = [
        SamplingParams(temperature=0, max_tokens=7),
        SamplingParams(temperature=0.9, seed=2, max_tokens=13),
        SamplingParams(temperature=1.1, top_p=0.8, top_k=20, seed=3, max_tokens=10),
        SamplingParams(temperature=0, max_tokens=16, min_tokens=3, **(EDITS if edits else {})),
    ]
    rounds = Rounds(worker)
    rows: list[Row] = []
    for index in range(4):
        rows.append(rounds.add(index, list(PROMPTS[index]), params[index], chunk=5, drafting=drafting[index]))
        rounds.decode([row for row in rows if not row.done], **shape, slack=index)
    while open_rows := [row for row in rows if not row.done]:
        rounds.decode(open_rows, **shape, slack=len(open_rows))
    return [row.out for row in rows]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("drafting", [(True,) * 4, (True, False, True, True)])
def test_replayed_rounds_equal_eager_ones(
    make_worker: MakeWorker, stand_in: StandIn, shape: str, drafting: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker(**SHAPES[shape])
    assert isinstance(worker, SpecWorker) and worker.capacity.report["graphs"] == 2 * 4 * 3 + 2 * 4
    lane = Stepping(CudaLane(worker))
    replayed = answers(lane, SHAPES[shape], drafting=drafting)
    monkeypatch.undo()
    assert replayed == answers(make_worker(**SHAPES[shape]), SHAPES[shape], drafting=drafting)


@pytest.mark.parametrize("shape", SHAPES)
def test_replayed_rounds_edit_logits_as_eager_ones_do(
    make_worker: MakeWorker, stand_in: StandIn, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed = answers(Stepping(CudaLane(make_worker(**SHAPES[shape]))), SHAPES[shape], edits=True)
    monkeypatch.undo()
    assert replayed == answers(make_worker(**SHAPES[shape]), SHAPES[shape], edits=True)


def test_rows_that_edit_logits_leave_no_step_to_run_eagerly(
    make_worker: MakeWorker, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded steps count what they commit, too."""
    worker = make_worker(**SHAPES["tree"])
    monkeypatch.setattr("aerie.spec.worker.draft_step", None)
    rounds = Rounds(worker)
    own = [SamplingParams(temperature=0.7, max_tokens=9, **EDITS), SamplingParams(temperature=0, max_tokens=9)]
    rows = [rounds.add(i, list(PROMPTS[i]), params, drafting=True) for i, params in enumerate(own)]
    rounds.finish(rows, **SHAPES["tree"])
    assert torch.equal(worker.state.tables.edits.counts[0], counted(rows[0], worker.capacity.vocabulary))


def counted(row: Row, vocabulary: int) -> torch.Tensor:
    """[V] as the tables count a row's prompt and answer."""
    counts = torch.bincount(torch.tensor(row.out), minlength=vocabulary).int()
    counts[torch.tensor(row.prompt)] += IN_PROMPT
    return counts


def test_plain_steps_are_replayed_too(
    make_worker: MakeWorker, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker("none")
    assert worker.capacity.report["graphs"] == 2 * 4
    nothing = {"depth": 0, "topk": 1, "nodes": 1}
    replayed = answers(Stepping(CudaLane(worker)), nothing, drafting=(False,) * 4)
    monkeypatch.undo()
    assert replayed == answers(make_worker("none"), nothing, drafting=(False,) * 4)


def test_graphs_do_the_work(make_worker: MakeWorker, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make_worker(**SHAPES["tree"])
    assert isinstance(worker, SpecWorker)
    eager: list[StepPlan] = []
    monkeypatch.setattr("aerie.spec.worker.draft_step", lambda phases, plan, *others: eager.append(plan))
    rounds = Rounds(worker)
    rows = [rounds.add(i, list(PROMPTS[i]), SamplingParams(temperature=0, max_tokens=9), drafting=True) for i in (0, 1)]
    rounds.finish(rows, **SHAPES["tree"])
    assert not eager and all(len(row.out) == 9 for row in rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_lone_row_of_fewer_nodes_is_replayed(
    make_worker: MakeWorker, stand_in: StandIn, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """max_draft_tokens=2: the scheduler plans a depth that nothing was recorded for."""
    few = {"depth": 2, "topk": SHAPES[shape]["topk"], "nodes": 3}

    def answer(worker: Any) -> tuple[list[int], list[int]]:
        rounds = Rounds(worker)
        row = rounds.add(0, list(PROMPTS[0]), SamplingParams(temperature=0, max_tokens=9), drafting=True)
        widths = [rounds.decode([row], **few).token_ids.shape[1]]
        rounds.finish([row], **few)
        return row.out, widths

    worker = make_worker(**SHAPES[shape])
    eager: list[StepPlan] = []
    monkeypatch.setattr("aerie.spec.worker.draft_step", lambda phases, plan, *others: eager.append(plan))
    replayed = answer(worker)
    assert not eager and replayed[1] == [3]
    monkeypatch.undo()
    assert replayed == answer(make_worker(**SHAPES[shape]))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_each_depth_that_a_planner_may_choose_has_its_own_recording(
    make_worker: MakeWorker, stand_in: StandIn, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker(planner="goodput", **SHAPES["chain"])
    assert worker.capacity.report["graphs"] == 3 * 2 * 4 * 3 + 2 * 4
    replayed: set[int] = set()
    replay = Graphs.replay

    def noted(graphs: Graphs, family: Family, bucket: Any) -> Any:
        replayed.add(bucket.depth)
        return replay(graphs, family, bucket)

    monkeypatch.setattr(Graphs, "replay", noted)
    rounds = Rounds(worker)
    row = rounds.add(0, list(PROMPTS[0]), SamplingParams(temperature=0, max_tokens=9), drafting=True)
    for _ in range(2):
        rounds.decode([row], depth=depth, topk=1, nodes=depth + 1)
    assert replayed == {depth}


def test_what_may_be_planned_is_the_config_s_table_or_all_that_a_planner_tries() -> None:
    chain, tree = LoadShape(rows=2, depth=3, nodes=4), LoadShape(rows=4, depth=3, topk=3, nodes=9)
    fixed = SpecConfig(planner="fixed", by_load=(tree, chain, LoadShape(rows=8, depth=0, nodes=1)))
    assert [planned_shapes(fixed, range(rows, rows + 1)) for rows in (1, 3, 5, 9)] == [
        {chain.shape},
        {tree.shape},
        set(),
        set(),
    ]
    assert planned_shapes(fixed, range(2, 5)) == {chain.shape, tree.shape}
    assert planned_shapes(SpecConfig(planner="fixed", depth=3, nodes=4), range(1, 2)) == {chain.shape}
    chosen = {DraftShape(depth, 1, depth + 1) for depth in (1, 2, 3)} | {tree.shape}
    assert planned_shapes(fixed.model_copy(update={"planner": "goodput"}), range(9, 10)) == chosen


def test_a_recording_reads_only_what_outlives_it(make_worker: MakeWorker, stand_in: StandIn) -> None:
    worker = make_worker(**SHAPES["tree"])
    gc.collect()
    for capture in stand_in.captures:
        capture.calls = []
    gc.collect()
    lost = {name for capture in stand_in.captures for name, storage in capture.foreign.values() if storage.expired()}
    assert not lost, f"operators {lost} read memory that is gone"
    assert worker is not None


def test_a_launch_waits_for_nothing(make_worker: MakeWorker, stand_in: StandIn) -> None:
    """Steps in which every operator that would wait raises. Attention's plans are the stand-in's own."""
    worker = make_worker(**SHAPES["tree"])
    assert isinstance(worker, SpecWorker)
    calm = Calm(worker)
    rounds = Rounds(calm)
    rows = [
        rounds.add(i, list(PROMPTS[i]), SamplingParams(temperature=i / 2, max_tokens=9), drafting=True) for i in (0, 1)
    ]
    rounds.finish(rows, **SHAPES["tree"])
    assert calm.launched > 3


def test_recording_waits_for_what_loading_wrote(
    make_worker: MakeWorker, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Streams()
    for name in ("active", "catch_up"):
        monkeypatch.setattr(stand_in, name, getattr(streams, name))
    with streams:
        CudaLane(make_worker(**SHAPES["chain"])).close()  # type: ignore[arg-type]


def test_what_is_not_recorded_is_said(
    make_worker: MakeWorker, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aerie.engine.attention.reference import ReferenceAttention

    monkeypatch.setattr("aerie.engine.build.make_attention", lambda *_: ReferenceAttention())
    report = make_worker(**SHAPES["chain"]).capacity.report
    assert report["graphs"] == "none: attention by reference cannot be recorded"


def test_a_closed_lane_holds_nothing(make_worker: MakeWorker, stand_in: StandIn) -> None:
    """Another model is loaded into the memory of this one, by a process that measures several."""
    worker = make_worker(**SHAPES["chain"])
    assert isinstance(worker, SpecWorker)
    pools = [weakref.ref(pool) for pool in (worker.state.target.pool, worker.drafter.head.pool)]
    lane = CudaLane(worker)
    del worker
    lane.close()
    assert [pool() for pool in pools] == [None, None] and lane.capacity.rows == 8
    lane.close()


class Calm:
    """Launches decode steps under NoWaits, but for attention's plans, and reads outputs outside of it."""

    def __init__(self, worker: SpecWorker) -> None:
        self.capacity = worker.capacity
        self._worker = worker
        self.launched = 0

    def step(self, plan: StepPlan, answer: Callable[[StepOutput], None]) -> None:
        if plan.decode is None:
            self._worker.step(plan, answer)
            return
        self.launched += 1
        with pytest.MonkeyPatch.context() as patch:
            for kind, name in ((GraphPass, "renew"), (HeldDense, "run")):
                patch.setattr(kind, name, unwatched(getattr(kind, name)))
            with NoWaits():
                pending = self._worker.launch(plan)
        answer(pending.output())

    def close(self) -> None: ...


def unwatched(honest: Callable[..., Any]) -> Callable[..., Any]:
    def apart(*given: Any) -> Any:
        with _disable_current_modes():
            return honest(*given)

    return apart


def test_buckets() -> None:
    assert row_buckets(1) == [1] and row_buckets(7) == [1, 2, 4, 7] and row_buckets(64)[-3:] == [32, 48, 64]
    assert bucket_for(5, [2, 4, 8]) == 8 and bucket_for(9, [2, 4, 8]) is None
    assert [family.value for family in Family] == ["draft", "verify", "forward", "choose", "extend"]

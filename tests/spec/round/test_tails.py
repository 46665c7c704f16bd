"""Rows that rest on a device beside its host, and come back: what their head then knows is what it would have learned
from the whole text at once, on a CPU; for recorded steps and others, with and without overlap, however late masks are.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from aerie.contracts.config import Config, parse_config
from aerie.contracts.sampling import SamplingParams
from aerie.contracts.shape import NO_DRAFT, DraftShape
from aerie.contracts.step import Ints, Longs, StepPlan
from aerie.engine.lanes.cuda import CudaLane
from aerie.engine.lanes.inline import InlineLane
from aerie.engine.state.future_map import FutureMap
from aerie.engine.state.row_tables import RowTables
from aerie.engine.state.transfer import HostTransfer
from aerie.engine.step.state import DeviceState
from aerie.scheduler import Scheduler
from aerie.scheduler.planner.costs import StepCosts
from aerie.scheduler.planner.goodput import Goodput
from aerie.scheduler.planner.keeping import Asked
from aerie.spec.build import build_worker, rest_refusal, tail_size
from aerie.spec.drafters.drafter import Drafter
from aerie.spec.drafters.head_drafter import HeadDrafter
from aerie.spec.round.tails import Tails
from aerie.spec.worker import SpecWorker
from aerie.worker import build_launcher
from tests.engine.rounds import Rounds
from tests.engine.stand_in import HeldDense, NoWaits, StandIn
from tests.spec import models
from tests.spec.alphabet import END, write_tokenizer
from tests.spec.conftest import MakeWorker
from tests.spec.round.test_graphs import Calm, unwatched
from tests.spec.round.test_masked_graphs import ROWS, Over, always, answers, never, requests, sometimes

SIZE = 3
"""Tokens of a tail: so few that rests fill it, and pairs lie over those of an earlier rest."""
CHAIN = DraftShape(2, 1, 3)


class Restless(Goodput):
    """Rests and drafts at random, and never lets a tail overflow."""

    def __init__(self, config: Config, seed: int) -> None:
        super().__init__(config.spec, StepCosts(ROWS * CHAIN.nodes), [CHAIN], rows=ROWS)
        self._source = random.Random(seed)

    def pays(self, asked: Asked, *, headed: int) -> bool:
        return self._source.random() < 0.9

    def rests(self, headed: Longs, rows: int) -> bool:
        return False

    def decide(
        self, headed: Longs, most: Ints, rows: int, context: int, behind: int, *, last: bool = False
    ) -> tuple[DraftShape, Ints]:
        nodes = np.minimum(most + 1, CHAIN.nodes).astype(np.int32)
        if not len(headed) or nodes.max() < 2 or (not last and self._source.random() < 0.6):
            return NO_DRAFT, np.ones_like(nodes)
        return DraftShape(int(nodes.max()) - 1, 1, int(nodes.max())), nodes

    def settle(self, *given: Any, **named: Any) -> None:
        """Learns nothing."""


@dataclass
class Learned:
    """What a head has of a text: keys and values by position, and the draft seed after each pair."""

    kv: Tensor
    seeds: Tensor


@dataclass
class Witness:
    """Holds each catch-up to what the head would know of the row's final text."""

    learned: dict[str, Learned]
    scheduler: Scheduler | None = None
    rows: int = 0
    stale: int = 0
    """Rows of which the host counted a token more than their tail had."""
    seen: list[int] = field(default_factory=list)

    def check(self, tails: Tails, state: DeviceState, drafter: Any, plan: StepPlan) -> None:
        assert plan.behind is not None and self.scheduler is not None
        for place in np.flatnonzero(plan.behind):
            row, generation = int(plan.rows[place]), int(plan.generations[place])
            if state.futures.done[generation, row]:
                continue
            length = int(state.futures.lengths[generation, row])
            expected = self.learned[self.scheduler.rows.ids[row]]
            kv = head_kv(state, drafter, row, length)
            torch.testing.assert_close(kv, expected.kv[..., :length, :, :], atol=1e-4, rtol=1e-4)
            own = state.futures.seeds[generation, row]
            torch.testing.assert_close(own, expected.seeds[length - 1], atol=1e-4, rtol=1e-4)
            self.rows += 1
            self.stale += int(length - tails.firsts[row] < plan.behind[place])


def head_kv(state: DeviceState, drafter: Any, row: int, length: int) -> Tensor:
    """Keys and values [2, layers, length, heads, head_dim] of a row's first tokens."""
    slots = state.tables.slots(torch.full((length,), row), torch.arange(length))
    pool = drafter.head.pool
    return torch.stack([pool.keys[:, slots], pool.values[:, slots]])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = models.write_target(tmp_path_factory.mktemp("resting"), end_id=END)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def config_of(target: Path, head_folder: Path, peagle_folder: Path) -> Callable[..., Config]:
    def made(head: str = "eagle", *, overlap: bool = True, graphs: bool = True, **spec: Any) -> Config:
        folder = {"eagle": str(head_folder), "peagle": str(peagle_folder), "none": "none"}[head]
        own = {"planner": "goodput", "resting_tokens": SIZE} if head != "none" else {}
        return parse_config(
            {
                "model": {"path": str(target), "dtype": "float32"},
                "engine": {"kv_tokens": 1024, "kernels": "torch", "edit_slots": 2, "graphs": graphs},
                "scheduler": {"max_running": ROWS, "poison": True, "overlap": overlap},
                "spec": {"head": folder, "depth": CHAIN.depth, "nodes": CHAIN.nodes} | own | spec,
            }
        )

    return made


@pytest.fixture(scope="module")
def lane_of(config_of: Callable[..., Config]) -> Iterator[Callable[..., CudaLane]]:
    """Lanes on the stand-in."""

    @cache
    def made(head: str, graphs: bool) -> CudaLane:
        stand_in = StandIn()
        with pytest.MonkeyPatch.context() as patch:
            for module in ("aerie.spec.build", "aerie.engine.build"):
                patch.setattr(f"{module}.runtime_of", lambda device: stand_in)
            for module in ("aerie.spec.drafters.head_drafter", "aerie.engine.build"):
                patch.setattr(f"{module}.make_attention", HeldDense)
            for module in ("aerie.spec.build", "aerie.engine.step.plain_graphs"):
                patch.setattr(f"{module}.row_buckets", lambda most: [ROWS])
            lanes.append(CudaLane(build_launcher(config_of(head, graphs=graphs))))
        return lanes[-1]

    lanes: list[CudaLane] = []
    yield made
    for lane in lanes:
        lane.close()


@pytest.fixture(scope="module")
def expected(config_of: Callable[..., Config]) -> dict[str, list[int]]:
    """The answers of a CPU, without drafts."""
    own = config_of("none")
    with closing(InlineLane(build_launcher(own))) as lane:
        return answers(lane, own)[0]


@pytest.fixture(scope="module")
def learned(config_of: Callable[..., Config], expected: dict[str, list[int]]) -> Callable[[str], dict[str, Learned]]:
    @cache
    def of(head: str) -> dict[str, Learned]:
        worker = build_worker(config_of(head))
        assert isinstance(worker, SpecWorker)
        prompts = {one.id: one.prompt for one in requests()}
        return {id: read(worker, [*prompts[id], *ids]) for id, ids in expected.items()}

    return of


def read(worker: SpecWorker, text: list[int]) -> Learned:
    """What the head of a CPU learns of a text in one pass."""
    outputs: list[Tensor] = []
    honest = HeadDrafter.outputs

    def noted(self: HeadDrafter, pairs: Any) -> Tensor:
        outputs.append(honest(self, pairs))
        return outputs[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeadDrafter, "outputs", noted)
        Rounds(worker).add(0, text, SamplingParams(temperature=0, max_tokens=2), drafting=True)
    assert len(outputs) == 1
    return Learned(head_kv(worker.state, worker.drafter, 0, len(text)), outputs[0])


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Witness:
    """Looks at each catch-up right after it."""
    found = Witness({})
    stage = Tails.stage_catch_up

    def staged(self: Tails, state: DeviceState, drafter: Drafter, plan: StepPlan) -> Callable[[], None]:
        run = stage(self, state, drafter, plan)

        def watched() -> None:
            with NoWaits(), pytest.MonkeyPatch.context() as patch:
                patch.setattr(HeldDense, "run", unwatched(HeldDense.run))  # it looks where a GPU's would not
                run()
            found.check(self, state, drafter, plan)

        return watched

    monkeypatch.setattr(Tails, "stage_catch_up", staged)
    monkeypatch.setattr(Scheduler, "__init__", _introduced(found, Scheduler.__init__))
    return found


def _introduced(witness: Witness, init: Callable[..., None]) -> Callable[..., None]:
    def made(self: Scheduler, *given: Any, **named: Any) -> None:
        init(self, *given, **named)
        witness.scheduler = self

    return made


@pytest.mark.parametrize("over", [never, sometimes(3), always], ids=["in time", "sometimes late", "always late"])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("head", "graphs"), [("eagle", True), ("eagle", False), ("peagle", True)])
def test_heads_of_rows_that_rested_know_all_of_the_text(
    config_of: Callable[..., Config],
    lane_of: Callable[..., CudaLane],
    expected: dict[str, list[int]],
    learned: Callable[[str], dict[str, Learned]],
    witness: Witness,
    head: str,
    graphs: bool,
    overlap: bool,
    over: Over,
) -> None:
    """Text, KV and draft seeds; rows greedy and sampled, with edits and grammars."""
    own, lane = config_of(head, overlap=overlap, graphs=graphs), lane_of(head, graphs)
    assert lane.capacity.tail == SIZE
    witness.learned = learned(head)
    for seed in range(4):
        lane._worker.state.masked.passed = over
        texts, scheduler = answers(lane, own, planner=Restless(own, seed))
        assert texts == expected
        assert scheduler.stats.drafted
    assert witness.rows > 20, "a test without rests shows nothing of them"
    if over is not never and overlap:
        assert witness.stale, "no host was ever late"


class Listed:
    """A drafter that notes the pairs written to the pages of rows; each row's seed is the token of its last pair."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int, int, float]] = []
        """Slot, position, token and tap."""

    def extend(self, pairs: Any) -> Tensor:
        real = pairs.slots >= PAGE  # the others lie in the dummy page
        columns = (pairs.slots, pairs.positions, pairs.tokens, pairs.taps[:, 0])
        self.taken += zip(*(column[real].tolist() for column in columns), strict=True)
        return pairs.tokens[pairs.lasts][:, None].float()


PAGE = 4


def few_rows(count: int) -> tuple[Any, Tails]:
    """A device's state of `count` rows with 8 pages each, and tails of a tap of one number."""
    tables = RowTables(count, 8, PAGE)
    tables.pages[:count] = torch.arange(1, 8 * count + 1).view(count, 8)
    state = SimpleNamespace(tables=tables, futures=FutureMap(count, seed_width=1), transfer=HostTransfer())
    kinds: Any = {"stored": torch.float32, "dtype": torch.float32, "device": torch.device("cpu")}
    return state, Tails(count, SIZE, 1, **kinds)


def plan_of(rows: list[int], **fields: Any) -> Any:
    """Rows that read generation 0."""
    count = len(rows)
    work = SimpleNamespace(bounds=np.full(count, 30, dtype=np.int32))
    named = {"resting": None, "fresh": None, "behind": None} | {
        name: np.array(values) for name, values in fields.items()
    }
    return SimpleNamespace(
        rows=np.array(rows, dtype=np.int32), generations=np.zeros(count, dtype=np.int32), decode=work, **named
    )


def test_random_rests_hand_the_head_each_pair_once() -> None:
    """Beside lists of what each row has kept: rows end, rest or not, and commit or not; the host counts every step."""
    source, count = random.Random(7), 4
    state, tails = few_rows(count)
    lengths, behind, kept = [5, 6, 7, 1], [0] * count, [[] for _ in range(count)]
    ended = [False] * count
    caught_up = 0
    for step in range(400):
        rows = sorted(source.sample(range(count), source.randint(1, count)))
        for row in rows:
            state.futures.lengths[0, row], state.futures.done[0, row] = lengths[row], ended[row]
            state.futures.seeds[0, row] = -1.0
        if source.random() < 0.4:
            drafter = Listed()
            tails.stage_catch_up(state, drafter, plan_of(rows, behind=[behind[row] for row in rows]))()
            pairs = [(row, *pair) for row in rows if not ended[row] for pair in kept[row]]
            owners, places = (torch.tensor([pair[part] for pair in pairs], dtype=torch.int64) for part in (0, 1))
            slots = state.tables.slots(owners, places)
            assert drafter.taken == [(slot, *pair[1:]) for slot, pair in zip(slots.tolist(), pairs, strict=True)]
            for row in rows:
                open_tail = kept[row] and not ended[row]
                assert state.futures.seeds[0, row] == (kept[row][-1][1] if open_tail else -1.0)
                caught_up += bool(open_tail)
                lengths[row] = source.randint(1, 20)  # whatever it committed
                behind[row], kept[row], ended[row] = 0, [], source.random() < 0.1
            continue
        resting = [source.random() < 0.7 and behind[row] < SIZE for row in rows]
        fresh = [rests and not behind[row] for row, rests in zip(rows, resting, strict=True)]
        plan = plan_of(rows, resting=resting, fresh=fresh)
        counts = [int(not ended[row] and source.random() < 0.7) for row in rows]
        before = tails.taps.clone(), tails.tokens.clone()
        result: Any = SimpleNamespace(
            rows=torch.tensor(rows),
            positions=torch.tensor([lengths[row] for row in rows]),
            committed=SimpleNamespace(counts=torch.tensor(counts)),
            taps=torch.tensor([[float(100 * step + row)] for row in rows]),
            tokens=torch.tensor([1000 * step + row for row in rows]),
            seeds=state.futures.seeds[0, rows],
        )
        assert torch.equal(tails.stage_keep(plan, len(rows), state.transfer)(result), result.seeds)
        for place, row in enumerate(rows):
            behind[row] += resting[place]
            if resting[place] and counts[place]:
                kept[row].append((lengths[row], 1000 * step + row, float(100 * step + row)))
                lengths[row] += 1
            else:
                after = tails.taps[row], tails.tokens[row]
                assert all(torch.equal(now, old[row]) for now, old in zip(after, before, strict=True))
                if not resting[place]:
                    behind[row], kept[row] = 0, []  # it extends its head, or stays plain
                    lengths[row] += counts[place]
    assert caught_up > 50


def test_what_cannot_rest_says_why(config_of: Callable[..., Config]) -> None:
    taps, none = SimpleNamespace(taps=(1, 2)), SimpleNamespace(taps=())
    own = config_of()
    assert rest_refusal(own, taps) is None and tail_size(own, taps) == SIZE
    assert tail_size(config_of(planner="fixed"), taps) == 0 and rest_refusal(config_of(planner="fixed"), none) is None
    assert rest_refusal(own, none) == "the head takes no taps, so its tokens cannot be kept for it"
    engine = own.engine.model_copy(update={"kind": "sglang-model"})
    foreign = own.model_copy(update={"engine": engine})
    assert tail_size(foreign, taps) == 0
    assert rest_refusal(foreign, taps) == "engine.kind is sglang-model, and its ranks keep no taps"


def test_steps_at_rest_are_recorded_and_wait_for_nothing(
    make_worker: MakeWorker, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take the recordings of plain steps, of which there are no more than without rests."""
    worker = make_worker(planner="goodput", resting_tokens=SIZE, depth=1, topk=1, nodes=2)
    assert worker.capacity.report["graphs"] == 3 * 2 * 4 + 2 * 4 and worker.capacity.report["tail_bytes"] > 0
    calm = Calm(worker)
    rounds = Rounds(calm)
    row = rounds.add(0, [1, 2, 3], SamplingParams(temperature=0.7, seed=1, max_tokens=20), drafting=True)
    monkeypatch.setattr("aerie.spec.worker.plain_step", None)
    for rest in (1, SIZE):
        for _ in range(rest):
            rounds.decode([row], resting=True)
        rounds.decode([row], depth=1, nodes=2, behind=rest)
    assert calm.launched == 1 + SIZE + 2

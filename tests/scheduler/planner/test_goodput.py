"""The planner in the loop: texts that no shape changes, rows that rest and come back, and useless statistics."""

import random
from dataclasses import replace

import numpy as np
import pytest

from aerie.contracts.messages import Finished
from aerie.contracts.shape import NO_DRAFT, DraftShape, chain_depths
from aerie.scheduler.planner.costs import StepCosts
from aerie.scheduler.planner.goodput import Goodput
from aerie.scheduler.planner.places import EACH
from aerie.scheduler.planner.trials import PROBE_STEPS
from tests import fakes
from tests.scheduler.driver import Driver, generate, random_requests
from tests.scheduler.planner.planners import CHAINS, SPEC, Chaos, costs, decided, pays, planner, step


@pytest.mark.parametrize(
    ("tail", "overlap", "stalls"),
    [(0, True, 0.0), (3, True, 0.0), (8, True, 0.0), (8, False, 0.0), (8, True, 0.3), (8, False, 0.3)],
)
def test_random_shapes_change_no_text(tail, overlap, stalls):
    """And the plans say rightly what is in the tails, also where steps of rows commit nothing."""
    requests = random_requests(200, seed=tail, longest=24, answer=30)
    capacity = fakes.capacity(rows=8, pages=40, tail=tail)
    lane = fakes.DelayedLane(fakes.FakeWorker(capacity, stalls=stalls), 0)
    own = planner(kind=Chaos)
    driver = Driver(lane=lane, spec=SPEC, overlap=overlap, max_waiting=300, prefill_chunk=7, planner=own)
    driver.trickle(requests, random.Random(tail))
    rested = sum(plan.resting is not None and plan.resting.any() for plan in driver.worker.plans)
    came_back = sum(plan.behind is not None and plan.behind.any() for plan in driver.worker.plans)
    assert bool(rested) == bool(came_back) == bool(tail), "a test without rests shows nothing of them"
    assert driver.scheduler.policy.preemptions > 0
    for request in requests:
        answer, (tokens, reason) = driver.reported[request.id], driver.expect(request)
        assert isinstance(answer.end, Finished)
        if answer.end.reason == "abort":
            assert answer.ids == tokens[: len(answer.ids)]
        else:
            assert (answer.ids, answer.end.reason) == (tokens, reason)


@pytest.mark.parametrize("known", [StepCosts(64), costs(verify=float("nan")), costs(verify=0.0), costs(verify=1e9)])
def test_costs_that_say_nothing_neither_stall_nor_crash(known):
    driver = Driver(fakes.capacity(tail=4), spec=SPEC, planner=planner(known))
    requests = random_requests(30, seed=2)
    driver.run(*requests)
    driver.assert_answered(requests)


class Lying(fakes.FakeWorker):
    """A device whose clock says anything, or nothing."""

    values = (float("nan"), float("inf"), -1.0, 0.0, 1e-9, 1e-3, 1e9)

    def step(self, plan, answer):
        source = random.Random(plan.number)

        def tell(output):
            phases = {
                name: source.choice(self.values) for name in ("draft", "verify", "extend") if source.random() < 0.7
            }
            times = {"phase_seconds": phases, "began": source.choice(self.values), "ended": source.choice(self.values)}
            answer(replace(output, **times))

        super().step(plan, tell)


def test_a_clock_that_lies_neither_stalls_nor_crashes_a_step():
    worker = Lying(fakes.capacity(rows=8, pages=40, tail=4))
    goodput = planner()
    driver = Driver(lane=fakes.DelayedLane(worker, 1), spec=SPEC, prefill_chunk=7, planner=goodput)
    requests = random_requests(60, seed=3)
    driver.run(*requests)
    driver.assert_answered(requests)
    assert any(plan.decode is not None and plan.decode.depth for plan in worker.plans)
    assert np.isfinite(goodput.costs.table(8, 100, 40)).all() and np.isfinite(goodput.guard.account(8))


@pytest.mark.parametrize("owners", [1, 2, EACH, EACH + 1])
def test_what_a_row_has_shown_is_not_its_next_owners(owners: int) -> None:
    """It is learned when the next ones have begun; at once where one of them takes the first one's place."""
    goodput, row = planner(level=1e-5, shapes=CHAINS), np.array([6])
    goodput.begin(6, 0.0, headed=True)
    goodput._lessons.learn()
    first = goodput._places.of(row)
    for number in range(8):
        goodput.settle(*step(number, 3, 4, accepted=4, verify=1e-3), steady=True)
    goodput.settle(*step(8, 1, decodes=False), steady=True)
    for owner in range(owners):
        goodput.begin(6, 0.0, headed=True)
        assert (goodput._lessons.labels == 0) == (owner >= EACH - 1)
    goodput._lessons.learn()
    own, former = (goodput.survival.offsets.current(places)[0] for places in (goodput._places.of(row), first))
    assert own == 0.0 and (former > 0.0) == (owners < EACH)


def test_cheap_drafts_that_are_accepted_go_deep():
    goodput = planner(level=1e-5, shapes=CHAINS)
    assert decided(goodput, steps=50, accepted=63)[-1].depth == 4


def test_drafts_that_cost_more_than_they_gain_are_not_made():
    goodput = planner(level=5e-3)
    assert decided(goodput, steps=PROBE_STEPS, accepted=0)[-1] == NO_DRAFT


def test_full_batches_on_a_machine_bound_by_tokens_draft_nothing():
    bound = planner(verify=1e-5, per_token=1e-3, level=1e-3, node=1e-3)
    free = planner(verify=1e-2, level=1e-4)
    assert decided(bound, rows=8, steps=3, accepted=1)[-1] == NO_DRAFT
    assert decided(free, rows=8, steps=3, accepted=1)[-1].drafts


def test_drafts_spare_the_host_steps():
    """The server's, the loop's and the clients' time counts, too: it is the same for many tokens as for one."""
    idle, busy = (planner(verify=1e-5, per_token=1e-3, level=1e-3, node=1e-4, gap=gap) for gap in (1e-5, 1e-2))
    assert decided(idle, rows=4, steps=3, accepted=1)[-1] == NO_DRAFT
    assert decided(busy, rows=4, steps=3, accepted=1)[-1].drafts


def test_a_useless_head_is_tried_ever_less_than_a_hundredth_of_the_time():
    goodput = planner(level=5e-4, shapes=CHAINS)
    decided(goodput, steps=100, accepted=0)
    shapes = decided(goodput, steps=3000, accepted=0)
    tried = [shape for shape in shapes if shape.drafts]
    assert tried and all(shape.depth == 1 for shape in tried[1:])
    assert len(tried) * (5e-4 * 2) < 0.015 * 3000 * 1e-3


def test_a_prompts_head_kv_pays_in_long_answers_alone():
    goodput = planner(level=1e-5, pair=5e-5, shapes=CHAINS)
    decided(goodput, rows=4, steps=60, accepted=63)
    kept = [pays(goodput, 4, 0.0, 800, prompt=40, answer=answer, headed=4) for answer in (4, 400)]
    assert kept == [False, True]
    assert pays(goodput, 4, 0.0, 80, prompt=2, answer=4, headed=4)


def test_a_request_is_asked_for_with_the_tokens_that_only_pages_without_head_kv_have():
    """A plain row fills pages, a drafting one does so again, and a third finds these."""
    asked = []

    class Asking(Goodput):
        def pays(self, request, *, headed):
            asked.append(request.again)
            return len(asked) > 1

    driver = Driver(fakes.capacity(tail=4), spec=SPEC, planner=planner(kind=Asking))
    for number in range(3):
        driver.run(generate(f"r{number}", [1] * 40, max_tokens=4))
    page = driver.capacity.page_size
    assert asked == [0, 39 // page * page, page], "the head of a row that ends lacks the pair of its last page"


def test_head_kv_is_kept_only_as_long_as_drafts_repay_it():
    goodput = planner(level=1e-5, pair=1e-6, shapes=CHAINS)
    decided(goodput, rows=4, steps=60, accepted=63)
    kept = [pays(goodput, 4, 0.0, 800, prompt=400, answer=400, headed=4) for _ in range(99)]
    assert 9 < sum(kept) < 99 and kept == sorted(kept, reverse=True)


def test_what_drafts_promise_fresh_rows_is_asked_again_soon_while_little_is_known():
    goodput = planner(level=5e-4, shapes=CHAINS)
    asked = {"prompt": 40, "answer": 400, "headed": 4}
    assert not pays(goodput, 4, 0.0, 800, **asked)
    decided(goodput, rows=4, steps=4, accepted=63)
    assert pays(goodput, 4, 0.0, 800, **asked)


def test_a_head_that_becomes_good_is_used_again():
    goodput = planner(level=5e-5, shapes=CHAINS)
    decided(goodput, steps=300, accepted=0)
    assert decided(goodput, steps=300, accepted=63)[-1].depth == 4


def test_requests_limit_their_own_nodes():
    goodput = planner(level=1e-5)
    shape, nodes = goodput.decide(np.arange(3), np.array([0, 1, 63], dtype=np.int32), 3, 30, 0)
    assert shape.drafts and nodes[0] == 1 and nodes[1] <= 2 < nodes[2]


def test_the_last_token_of_a_request_is_not_drafted():
    driver = Driver(fakes.capacity(), spec=SPEC, planner=planner(level=1e-6))
    driver.run(generate("a", [1, 2, 3], max_tokens=2))
    assert all(plan.decode is None or plan.decode.depth == 0 for plan in driver.worker.plans)


def test_depths_of_chains():
    assert chain_depths([DraftShape(6, 1, 7)]) == (1, 2, 3, 4, 6)
    assert chain_depths([DraftShape(5, 4, 4), NO_DRAFT]) == (1, 2, 3)


def test_the_snapshot_says_what_was_planned():
    driver = Driver(fakes.capacity(tail=8), spec=SPEC, planner=planner(level=1e-6))
    driver.run(generate("a", [1, 2, 3], max_tokens=20))
    snapshot = driver.snapshots[-1].planner
    assert snapshot is not None and sum(snapshot.steps_by_depth.values()) > 0
    assert driver.snapshots[-1].drafts > 0

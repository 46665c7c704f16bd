"""Shares of one lane: rows and pages of their own, and times without the others' slices."""

from dataclasses import replace

import numpy as np

from aerie.contracts.config import Config, SchedulerConfig
from aerie.contracts.step import DUMMY_PAGE, PrefillWork, StepKind, StepOutput, StepPlan
from aerie.probe.slices import Contestant, Share
from aerie.scheduler import Scheduler
from tests import fakes
from tests.scheduler.driver import CHAIN, generate


def test_shares_answer_beside_each_other_as_alone():
    capacity = fakes.capacity(rows=8, pages=41)
    worker = fakes.FakeWorker(capacity, poison=False)
    lane = fakes.QueueLane(Counting(worker))
    config = Config(scheduler=SchedulerConfig(prefill_chunk=16, prefix_cache=False), spec=CHAIN)
    contestants = []
    for number in range(2):
        share = Share(lane, number, 2)
        assert (share.capacity.rows, share.capacity.pages) == (4, 21)

        def request(index):
            return generate(f"r{index}", [1, 2, 3 + index % 4], max_tokens=12, seed=index)

        contestants.append(Contestant(share, Scheduler(share, config), request, 3, True))
    for tokens in range(3, 93, 3):
        for one in contestants:
            before = one.tokens
            assert one.run(tokens).tokens == one.tokens - before and one.tokens >= tokens
    both = contestants[0].ended & contestants[1].ended
    assert len(both) > 5
    assert all(contestants[0].answers[id] == contestants[1].answers[id] for id in both)
    decoded = [plan for plan in worker.plans if plan.decode is not None]
    assert sum(one.share.launched for one in contestants) == len(decoded)
    assert all(len(one.ttft) == len(one.answers) and min(one.ttft) >= 0 for one in contestants)
    assert all(one.share.alone < one.share.launched / 4 for one in contestants), "overlap hides the host"
    rows, pages = worker_use(worker)
    assert all(row < 4 for row in rows[0]) and all(row >= 4 for row in rows[1])
    assert not pages[0] & pages[1] - {DUMMY_PAGE}


def test_the_extend_of_anothers_last_step_is_nobodys():
    """It comes with the next answer, and would be taken for that of a step at rest."""
    worker = fakes.FakeWorker(fakes.capacity(rows=8, pages=41), poison=False)
    lane = fakes.QueueLane(Counting(Extending(worker)))
    config = Config(scheduler=SchedulerConfig(prefix_cache=False), spec=CHAIN)

    def request(index):
        return generate(f"r{index}", [1, 2, 3], max_tokens=12, seed=index)

    shares = [Noting(lane, number, 2) for number in range(2)]
    contestants = [Contestant(share, Scheduler(share, config), request, 3, True) for share in shares]
    slices = (20, 40, 60)
    for tokens in slices:
        for one in contestants:
            one.run(tokens)
    for share in shares:
        assert not share.known[0] and len(share.known) > 2 * len(slices)
        assert share.known.count(False) == len(slices)


class Noting(Share):
    """A share that notes which of its answers have the time of an extend."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.known = []

    def settle(self):
        output = super().settle()
        self.known.append("extend" in output.phase_seconds)
        return output


class Extending:
    """The worker, each of whose answers has the time of the extend before."""

    def __init__(self, worker):
        self._worker = worker

    def __getattr__(self, name):
        return getattr(self._worker, name)

    def step(self, plan, answer):
        self._worker.step(plan, lambda out: answer(replace(out, phase_seconds={**out.phase_seconds, "extend": 1e-3})))


class Counting:
    """The worker, with the numbers of its steps in a row: each share counts its own."""

    def __init__(self, worker):
        self._worker, self._next = worker, 0

    def __getattr__(self, name):
        return getattr(self._worker, name)

    def step(self, plan, answer):
        number, self._next = plan.number, self._next + 1
        self._worker.step(replace(plan, number=self._next - 1), lambda out: answer(replace(out, number=number)))


def worker_use(worker):
    rows, pages = [set(), set()], [set(), set()]
    for plan in worker.plans:
        number = int(plan.rows[0] >= 4)
        rows[number] |= set(np.asarray(plan.rows).tolist())
        if plan.page_updates is not None:
            pages[number] |= set(plan.page_updates.pages.tolist())
    return rows, pages


def test_the_others_slices_are_no_pause_and_the_first_step_after_them_says_nothing(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("aerie.probe.slices.time.monotonic", lambda: now[0])

    class Timed(fakes.QueueLane):
        def settle(self):
            return replace(super().settle(), began=now[0] - 1.0, ended=now[0], phase_seconds={"prefill": 0.5})

    lane = Timed(Answering())
    share = Share(lane, 0, 1)
    share.resume()
    found = []
    for number in range(4):
        share.launch(chunk_plan(number))
        if number % 2:
            share.park()
            found += [share.settle(), share.settle()]
            now[0] += 50.0
            share.resume()
            now[0] += 1.0
    assert [one.ended for one in found] == [0.0, 100.0, 0.0, 101.0]
    assert [one.phase_seconds for one in found] == [{}, {"prefill": 0.5}] * 2
    assert share.busy == 2.0


class Answering:
    """A worker that answers every plan."""

    capacity = fakes.capacity(rows=4, pages=21)

    def step(self, plan, answer):
        none = np.zeros(1, dtype=np.int32)
        answer(StepOutput(plan.number, none[:, None], none, none, none, none, none))


def chunk_plan(number):
    """A chunk of a prompt."""
    none = np.zeros(1, dtype=np.int32)
    chunk = PrefillWork(none + 7, none, none + 1, np.array([False]), none + 8)
    return StepPlan(number, StepKind.PREFILL, none, none, np.array([False]), chunk, None)

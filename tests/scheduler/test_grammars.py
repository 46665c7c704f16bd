"""Requests with grammars wait for the lane beside the queue, and hold up nobody."""

import dataclasses

import numpy as np
import pytest

from aerie.contracts.grammar import Grammar, Prepared
from aerie.contracts.messages import Abort, Failed, Finished, Generate
from aerie.contracts.step import StepOutput
from tests import fakes
from tests.scheduler.driver import Driver, generate

GRAMMAR = Grammar(kind="regex", text="a+")


class Builds:
    """Builds of grammars that end when the test says so."""

    def __init__(self) -> None:
        self.begun = {}
        self.forgotten: list[int] = []

    def prepare(self, request, grammar, done) -> None:
        assert grammar == GRAMMAR
        self.begun[request] = done

    def forget(self, request) -> None:
        self.forgotten.append(request)

    def end(self, error: str | None = None, *, reused: bool = False) -> None:
        for request, done in self.begun.items():
            done(Prepared(request, 0.25, error, reused))
        self.begun = {}


class Worker(fakes.FakeWorker):
    """Keeps the plans, and reports the faults that a test plants by a row's place, and what grammars forbade."""

    def __init__(self, capacity) -> None:
        super().__init__(capacity)
        self.guides = Builds()
        self.faults: dict[int, str] = {}
        self.forbidden = 0
        """Of each row's drafts in a step."""

    def step(self, plan, answer) -> None:
        def with_faults(output: StepOutput) -> None:
            faults = {} if plan.decode is None else self.faults
            forbidden = np.full(len(plan.rows), self.forbidden, np.int32)
            answer(dataclasses.replace(output, faults=dict(faults), forbidden=forbidden))

        super().step(plan, with_faults)


@pytest.fixture
def driver() -> Driver:
    worker = Worker(fakes.capacity())
    return Driver(lane=fakes.QueueLane(worker))


def guided(id: str, prompt: list[int], **fields: object) -> Generate:
    return generate(id, prompt, grammar=GRAMMAR, **fields)


def preempt_once_answered(driver: Driver) -> None:
    """Preempts a request after the one with a grammar has answered something, with no step in flight."""
    driver.worker.guides.end()
    while not driver.reported.get("held"):
        driver.iterate()
    while driver.scheduler._flights:
        driver.scheduler._settle()
    driver.scheduler.policy.preempt()


def test_a_request_waits_for_its_grammar_and_others_do_not(driver: Driver) -> None:
    slow, quick = guided("slow", [1, 2], max_tokens=5), generate("quick", [3, 4], max_tokens=5)
    driver.submit(slow, quick)
    for _ in range(30):
        driver.iterate()
    assert driver.reported["quick"].end is not None
    assert "slow" not in driver.reported and not driver.scheduler.idle
    driver.worker.guides.end()
    driver.run()
    driver.assert_answered([slow, quick])
    assert driver.worker.guides.forgotten == [0]


def test_what_had_been_built_is_counted_apart(driver: Driver) -> None:
    for id, reused in (("first", False), ("again", True), ("other", False), ("third", True), ("fourth", True)):
        driver.submit(guided(id, [1, 2], max_tokens=2))
        while not driver.worker.guides.begun:
            driver.iterate()
        driver.worker.guides.end(reused=reused)
        driver.run()
    took = driver.snapshots[-1].grammars
    assert (took.builds, took.reused, took.build_seconds) == (2, 3, 5 * 0.25)


def test_usage_counts_what_grammars_forbade(driver: Driver) -> None:
    driver.worker.forbidden = 2
    held = guided("held", [1, 2], max_tokens=30)
    driver.submit(held, generate("free", [3], max_tokens=5))
    preempt_once_answered(driver)
    driver.run()
    for id in ("held", "free"):
        usage = driver.reported[id].end.usage
        assert usage.forbidden == 2 * usage.steps > 0


def test_the_lane_gets_the_request_s_number_and_what_it_answered_before(driver: Driver) -> None:
    driver.submit(generate("free", [5], max_tokens=40), guided("held", [1, 2], max_tokens=40))
    preempt_once_answered(driver)
    preempted = driver.scheduler.queue.first()
    assert preempted is not None and preempted.id == "held"
    answered = preempted.tokens[2:]
    assert answered
    driver.run()
    starts = [plan.starts for plan in driver.worker.plans if plan.starts is not None and plan.starts.guides is not None]
    assert [list(one.guides[one.guides >= 0]) for one in starts] == [[1], [1]]
    assert [one.answers[list(one.guides).index(1)] for one in starts] == [[], answered]


def test_a_grammar_that_cannot_be_built_fails_its_request_by_name(driver: Driver) -> None:
    driver.submit(guided("bad", [1], max_tokens=3))
    driver.iterate()
    driver.worker.guides.end("too large")
    driver.run()
    end = driver.reported["bad"].end
    assert isinstance(end, Failed) and (end.status, end.code) == (400, "invalid_grammar")
    assert "too large" in end.message


def test_a_held_request_can_leave_at_any_time(driver: Driver) -> None:
    driver.submit(guided("gone", [1], max_tokens=3))
    driver.iterate()
    driver.submit(Abort(id="gone"))
    driver.iterate()
    driver.worker.guides.end()  # nobody waits for it any more
    driver.run()
    end = driver.reported["gone"].end
    assert isinstance(end, Finished) and end.reason == "abort"


def test_a_held_request_has_a_deadline_too(driver: Driver) -> None:
    driver.submit(guided("late", [1], max_tokens=3, queue_deadline=0.05, deadline=9.0))
    driver.run(most_turns=50)
    end = driver.reported["late"].end
    assert isinstance(end, Failed) and end.code == "queue_timeout"


def test_a_fault_ends_its_row_alone_and_what_it_committed_is_void(driver: Driver) -> None:
    held, free = guided("held", [1, 2], max_tokens=20), generate("free", [3, 4], max_tokens=20)
    driver.submit(held, free)
    driver.worker.guides.end()
    while not (driver.reported.get("held") and driver.reported.get("free")):
        driver.iterate()
    row = next(row for row, owner in enumerate(driver.scheduler.rows.owners) if owner and owner.id == "held")
    reported = list(driver.reported["held"].ids)
    last = driver.worker.plans[-1]
    driver.worker.faults = {list(last.rows).index(row): "no way on"}
    driver.iterate()
    driver.iterate()
    driver.worker.faults = {}
    driver.run()
    end = driver.reported["held"].end
    assert isinstance(end, Failed) and end.status == 400 and "no way on" in end.message
    assert len(driver.reported["held"].ids) <= len(reported) + 8
    driver.assert_answered([free])

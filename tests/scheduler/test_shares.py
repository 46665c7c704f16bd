"""How prompts share prefill steps: short ones are quick beside long ones, and each is read within the bound that
scheduler/shares.py proves.
"""

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.contracts.config import load_config
from aerie.contracts.messages import Abort, Finished, Generate
from aerie.contracts.step import StepKind, StepPlan
from aerie.scheduler import shares
from aerie.scheduler.request import Phase, Request
from tests import fakes
from tests.scheduler.driver import PLAIN, Driver, generate

BIG = fakes.capacity(rows=16, pages=4000, max_length=900)
DEMO = load_config(Path("configs/serve/demo.yaml")).scheduler
UNREAD = (Phase.WAITING, Phase.PREFILL)


def prefills(driver: Driver) -> list[dict[int, int]]:
    """Tokens by row of each prefill step so far."""
    return [
        dict(zip(plan.rows.tolist(), plan.prefill.counts.tolist(), strict=True))
        for plan in driver.worker.plans
        if plan.prefill
    ]


def sums(driver: Driver) -> list[int]:
    return [sum(step.values()) for step in prefills(driver)]


def test_long_prompts_get_a_small_part_while_others_are_open_and_a_while_after():
    driver = Driver(BIG, prefill_chunk=32, long_prefill_threshold=12, long_prefill_chunk=4)
    driver.submit(generate("a", [1] * 400, max_tokens=1))
    driver.iterate()
    driver.submit(
        generate("b", [2] * 500, max_tokens=1), *[generate(f"s{i}", [i] * 12, max_tokens=1) for i in range(3)]
    )
    driver.run()
    steps = prefills(driver)
    assert list(steps[0].values()) == [32], "alone it has the whole step"
    assert list(steps[1].values()) == [12, 12, 8], "the short ones first"
    assert steps[2] == {0: 4, 3: 4}, "long prompts are never left out twice; of these the one whose rest is less"
    assert sums(driver)[3:12] == [4] * (shares.LINGER + 1), "the last short one decodes; another may be on its way"
    assert sums(driver)[12:14] == [32, 32], "long prompts alone share the whole step"


def test_a_prompt_stays_long_until_it_is_read():
    driver = Driver(BIG, prefill_chunk=32, long_prefill_threshold=16, long_prefill_chunk=4, prefix_cache=False)
    driver.submit(generate("decodes", [3], max_tokens=60), generate("long", [1] * 50, max_tokens=1))
    driver.run()
    assert sums(driver) == [1, *[4] * 12, 2]


def test_a_prompt_whose_beginning_is_cached_is_as_long_as_its_rest():
    driver = Driver(BIG, prefill_chunk=64, long_prefill_threshold=16, long_prefill_chunk=4)
    driver.run(generate("first", [1] * 400, max_tokens=1))
    driver.submit(generate("decodes", [3], max_tokens=60))
    driver.iterate()
    driver.run(generate("again", [1] * 408, max_tokens=1))
    assert sums(driver)[-1] == 12, "396 tokens of whole pages are cached"


class Watching(fakes.DelayedLane):
    """Keeps the kinds of the launched steps."""

    def __init__(self) -> None:
        super().__init__(fakes.FakeWorker(BIG))
        self.kinds: list[StepKind] = []

    def launch(self, plan: StepPlan) -> None:
        self.kinds.append(plan.kind)
        super().launch(plan)


@dataclass
class Wait:
    """From a request's arrival to the launch of its last chunk; `work` is what it and its elders had left to read."""

    request: Request
    work: list[int]
    since: int
    kinds: list[StepKind] | None = None

    @property
    def prefills(self) -> int:
        assert self.kinds is not None, f"{self.request.id} was never read"
        return self.kinds.count(StepKind.PREFILL)


def waits_of(drawn: list[tuple[int, int, int]], **scheduler: object) -> list[Wait]:
    """Runs requests of (turns to pause, prompt, answer). Their prompts begin differently, so that none is cached."""
    lane = Watching()
    driver = Driver(lane=lane, spec=PLAIN, **scheduler)
    waits: list[Wait] = []

    def iterate() -> None:
        driver.iterate()
        for wait in waits:
            if wait.kinds is None and wait.request.phase not in UNREAD:
                wait.kinds = lane.kinds[wait.since :]

    for number, (pause, length, answer) in enumerate(drawn):
        for _ in range(pause):
            iterate()
        driver.submit(generate(f"r{number}", [number, *[7] * (length - 1)], max_tokens=answer))
        request = driver.scheduler._open[f"r{number}"]
        elders = [wait.request.remaining for wait in waits if wait.request.phase in UNREAD]
        waits.append(Wait(request, [*elders, length], len(lane.kinds)))
    while not driver.scheduler.idle:
        iterate()
    assert driver.scheduler.policy.preemptions == 0, "the bound is for prompts that keep their place"
    return waits


arrivals = st.lists(
    st.tuples(st.integers(0, 6), st.one_of(st.integers(1, 12), st.integers(100, 400)), st.integers(1, 12)),
    min_size=1,
    max_size=14,
)


@settings(max_examples=60)
@given(arrivals, st.integers(8, 64), st.integers(1, 20), st.integers(1, 20))
def test_every_prompt_is_read_within_the_bound(drawn, chunk, threshold, limit):
    least = max(1, min(limit, chunk) // 2)
    for wait in waits_of(drawn, prefill_chunk=chunk, long_prefill_threshold=threshold, long_prefill_chunk=limit):
        bound = 2 * sum(-(-left // least) for left in wait.work)
        assert wait.prefills <= bound, wait.request.id
        assert len(wait.kinds) <= 2 * bound, wait.request.id


@settings(max_examples=30)
@given(arrivals.filter(lambda drawn: sum(length for _, length, _ in drawn) > 800))
def test_aging_shortens_a_long_wait(drawn):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shares, "AGING", 8)
        for wait in waits_of(drawn, prefill_chunk=64, long_prefill_threshold=12, long_prefill_chunk=2):
            # Each second step gives what the age says; the last one of a prompt may give less.
            left, bound = sum(wait.work) + 16 * len(wait.work), 0
            while left > 0:
                left -= min(2 << bound // 8, 32) // 2
                bound += 2
            assert wait.prefills <= bound, wait.request.id


def device_seconds(plan: StepPlan) -> float:
    """What a step costs a small CPU, roughly as the demo pair's steps were timed: a base, tokens, and their context."""
    if plan.prefill is None:
        return 0.002 + 0.0001 * len(plan.rows)
    context = plan.prefill.starts + plan.prefill.counts
    return 0.002 + float((plan.prefill.counts * (1.5e-4 + 2e-7 * context)).sum())


class Machine:
    """A driver on virtual time: steps take `device_seconds`, and nobody sleeps."""

    def __init__(self) -> None:
        capacity = fakes.capacity(rows=64, pages=4097, page_size=16, max_length=2048, end_ids=())
        lane = fakes.TimedLane(
            fakes.FakeWorker(capacity), device_seconds, clock=lambda: self.driver.now, sleep=self._sleep
        )
        settings = {"prefill_chunk": 256, "long_prefill_threshold": 64, "long_prefill_chunk": DEMO.long_prefill_chunk}
        self.driver = Driver(lane=lane, spec=PLAIN, turn_seconds=1e-5, **settings)
        self.driver.worker.cached_pages = tuple  # a walk over the cache in each step takes long
        self.random = random.Random(1)
        self.asked: dict[str, float] = {}
        self.open: set[str] = set()
        self.first: dict[str, float] = {}
        self.ended: dict[str, float] = {}

    def _sleep(self, seconds: float) -> None:
        self.driver.now += seconds

    def ask(self, request: Generate) -> None:
        self.asked[request.id] = self.driver.now
        self.open.add(request.id)
        self.driver.submit(request)

    def iterate(self) -> None:
        self.driver.iterate()
        for id in [id for id in self.open if id in self.driver.reported]:
            reported = self.driver.reported[id]
            if reported.ids:
                self.first.setdefault(id, self.driver.now - self.asked[id])
            if reported.end is not None:
                assert isinstance(reported.end, Finished), f"{id}: {reported.end}"
                self.ended[id] = self.driver.now - self.asked[id]
                self.open.remove(id)

    def shorts(self, generations: int, *, clients: int = 4) -> float:
        """The 99th percentile of the time to first token of `clients` that ask one short question after another."""
        asked = []
        for _ in range(generations):
            while sum(id.startswith("short") for id in self.open) < clients:
                asked.append(f"short {len(self.asked)}")
                prompt = [self.random.randrange(50) for _ in range(self.random.randint(12, 30))]
                self.ask(generate(asked[-1], prompt, max_tokens=8))
            self.iterate()
        waited = sorted(self.first[id] for id in asked if id in self.first)
        return waited[-(-99 * len(waited) // 100) - 1]


def long_prompts(deadline: float) -> list[Generate]:
    fields = {"max_tokens": 16, "queue_deadline": deadline}
    return [generate(f"long {i}", [i, *[7] * 1499], **fields) for i in range(12)]


def test_twelve_long_prompts_are_answered_within_30_s_alone():
    machine = Machine()
    for request in long_prompts(60.0):
        machine.ask(request)
    while not machine.driver.scheduler.idle:
        machine.iterate()
    assert max(machine.ended.values()) < 30


def test_twelve_long_prompts_are_answered_within_30_s_beside_short_ones_that_hardly_notice():
    machine = Machine()
    quiet = machine.shorts(1500)
    for request in long_prompts(60.0 + machine.driver.now):
        machine.ask(request)
    beside = machine.shorts(1500)
    while any(id.startswith("long") for id in machine.open):
        machine.shorts(50)
    assert max(seconds for id, seconds in machine.ended.items() if id.startswith("long")) < 30
    assert beside <= 1.25 * quiet, f"{1000 * beside:.1f} ms, quiet {1000 * quiet:.1f} ms"


def test_a_long_prompt_past_its_queue_deadline_takes_a_free_row_instead_of_a_503():
    fields = {"prefill_chunk": 32, "long_prefill_threshold": 8, "long_prefill_chunk": 2}
    driver = Driver(BIG, **fields)
    driver.submit(generate("decodes", [3], max_tokens=800))
    requests = [generate(f"long {i}", [i, *[7] * 99], max_tokens=4, queue_deadline=0.5) for i in range(6)]
    driver.run(*requests)
    driver.assert_answered(requests)
    waited = [driver.reported[request.id].end.usage.queue_seconds for request in requests]
    assert sum(seconds == pytest.approx(0.5, abs=0.02) for seconds in waited) >= 3, (
        "they got their rows at the deadline"
    )


def test_a_row_claimed_at_the_deadline_is_given_back_by_an_abort_or_a_preemption():
    driver = Driver(
        fakes.capacity(rows=3, pages=24, reserve=4), prefill_chunk=4, long_prefill_chunk=1, prefix_cache=False
    )
    driver.submit(generate("decodes", [3], max_tokens=30))
    requests = [generate(f"long {i}", [i, *[7] * 15], max_tokens=2, queue_deadline=0.05 + i / 50) for i in range(3)]
    driver.submit(*requests)
    for _ in range(9):
        driver.iterate()
    driver.run(Abort(id="long 1"))
    driver.assert_answered([requests[0]])

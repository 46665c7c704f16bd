"""2,000 requests with random arrivals, aborts and a tiny pool: every id ends exactly once, no page is lost, and what
was not aborted is what a calm run tells."""

import random

import pytest

from aerie.contracts.messages import Abort, Finished
from aerie.contracts.spec_section import LoadShape, SpecConfig
from tests import fakes
from tests.scheduler.driver import Driver, random_requests

SHAPES = SpecConfig(
    planner="fixed", by_load=(LoadShape(rows=3, depth=3, topk=2, nodes=8), LoadShape(rows=6, depth=1, topk=1, nodes=2))
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("overlap", "count"), [(True, 2000), (False, 500)])
def test_soak(overlap, count):
    source = random.Random(11)
    requests = random_requests(count, seed=11, longest=24, answer=20)
    driver = Driver(fakes.capacity(rows=8, pages=30), spec=SHAPES, overlap=overlap, max_waiting=3000)
    arriving = iter(requests)
    submitted: list[str] = []
    left = len(requests)
    while left or not driver.scheduler.idle:
        for _ in range(min(left, source.choice([0, 0, 0, 1, 2]))):
            request = next(arriving)
            submitted.append(request.id)
            driver.submit(request)
            left -= 1
        if submitted and source.random() < 0.05:
            driver.submit(Abort(id=source.choice(submitted[-20:])))
        driver.iterate()
        if driver.generations % 50 == 0:
            driver.scheduler.check()
    driver.scheduler.check()
    assert set(driver.reported) == {request.id for request in requests}
    aborted = 0
    for request in requests:
        reported = driver.reported[request.id]
        assert isinstance(reported.end, Finished), reported.end
        tokens, reason = driver.expect(request)
        aborted += reported.end.reason == "abort"
        if reported.end.reason == "abort":
            assert reported.ids == tokens[: len(reported.ids)]
        else:
            assert (reported.ids, reported.end.reason) == (tokens, reason)
    policy = driver.scheduler.policy
    assert aborted > count / 100 and policy.preemptions > count / 100 and policy.hits > 0, "the soak was too calm"
    assert driver.scheduler.memory.allocator.held == driver.scheduler.memory.prefix.size

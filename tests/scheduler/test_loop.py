"""The whole loop on a fake device with delayed results: every request is answered as if it were alone."""

import random

import pytest

from aerie.contracts.messages import SpeculationParams
from aerie.contracts.spec_section import SpecConfig
from aerie.contracts.step import StepKind
from tests import fakes
from tests.scheduler.driver import CHAIN, PLAIN, Driver, generate, random_requests


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("spec", [CHAIN, PLAIN, SpecConfig(planner="fixed", depth=3, topk=2, nodes=8)])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_every_request_is_answered_as_if_it_were_alone(overlap, spec, chunk):
    requests = random_requests(40, seed=chunk)
    driver = Driver(fakes.capacity(pages=80), spec=spec, overlap=overlap, prefill_chunk=chunk)
    driver.run(*requests)
    driver.assert_answered(requests)
    assert driver.lane.most_in_flight == (2 if overlap else 1)


def test_overlapped_and_synchronous_loops_tell_the_same():
    requests = random_requests(60, seed=3)
    reported = []
    for overlap in (True, False):
        driver = Driver(fakes.capacity(pages=40), overlap=overlap)
        reported.append({id: (one.ids, one.end.reason) for id, one in driver.run(*requests).items()})
    assert reported[0] == reported[1]


def test_random_arrivals_and_a_tiny_pool():
    source = random.Random(5)
    requests = random_requests(80, seed=5)
    driver = Driver(fakes.capacity(rows=6, pages=26))
    waiting = list(requests)
    while waiting or not driver.scheduler.idle:
        if waiting and source.random() < 0.4:
            driver.submit(waiting.pop(0))
        driver.iterate()
        driver.scheduler.check()
    driver.assert_answered(requests)
    assert driver.scheduler.policy.preemptions > 0, "the pool was not tiny enough to preempt"


def test_decode_then_prefill_of_others_then_decode_keeps_every_rows_values():
    """Rows absent from a step keep their generation; the fake device refuses to read an unpublished one."""
    first = [generate(f"a{i}", [i, 2, 3], max_tokens=40) for i in range(3)]
    driver = Driver(fakes.capacity(pages=200), prefill_chunk=4)
    driver.submit(*first)
    for _ in range(12):
        driver.iterate()
    late = [generate(f"b{i}", list(range(i, i + 20)), max_tokens=20) for i in range(4)]
    driver.run(*late)
    driver.assert_answered(first + late)
    kinds = [plan.kind for plan in driver.worker.plans]
    assert any(kinds[i : i + 3] == [StepKind.DECODE, StepKind.PREFILL, StepKind.DECODE] for i in range(len(kinds) - 2))


def test_a_prefix_hit_gives_the_text_of_a_cold_start():
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    driver = Driver()
    driver.run(generate("cold", prompt, max_tokens=9))
    driver.run(generate("warm", prompt, max_tokens=9))
    driver.run(generate("longer", [*prompt, *driver.reported["cold"].ids, 8], max_tokens=9))
    assert driver.reported["warm"].ids == driver.reported["cold"].ids
    assert driver.reported["cold"].end.usage.cached_tokens == 0
    assert driver.reported["warm"].end.usage.cached_tokens == 8
    assert driver.reported["longer"].end.usage.cached_tokens == 16
    driver.assert_answered([generate("longer", [*prompt, *driver.reported["cold"].ids, 8], max_tokens=9)])
    assert driver.snapshots[-1].prefix_hits == 24


def test_no_prefix_cache_no_hits():
    driver = Driver(prefix_cache=False)
    for id in ("a", "b"):
        driver.run(generate(id, [1] * 20, max_tokens=4))
    assert driver.reported["b"].end.usage.cached_tokens == 0
    assert driver.scheduler.memory.allocator.held == 0


def test_pages_without_head_kv_are_a_miss_for_drafting_requests():
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    plain = SpeculationParams(enabled=False)
    driver = Driver()
    driver.run(generate("plain", prompt, max_tokens=4, speculation=plain))
    driver.run(generate("drafting", prompt, max_tokens=4))
    driver.run(generate("plain again", prompt, max_tokens=4, speculation=plain))
    cached = [driver.reported[id].end.usage.cached_tokens for id in ("plain", "drafting", "plain again")]
    assert cached == [0, 0, 8]


def test_preemption_gives_the_same_text_and_nothing_twice():
    requests = [generate(f"r{i}", [i] * 6, max_tokens=50, seed=i) for i in range(5)]
    driver = Driver(fakes.capacity(rows=5, pages=33))
    driver.run(*requests)
    driver.assert_answered(requests)
    preempted = [id for id, reported in driver.reported.items() if reported.end.usage.preemptions]
    assert preempted and "r0" not in preempted, "the youngest go first, the eldest never"
    assert driver.snapshots[-1].preemptions == sum(
        reported.end.usage.preemptions for reported in driver.reported.values()
    )

"""Who goes into a step: shares of a prefill step, turns of prefill and decode, admission."""

import pytest

from aerie.contracts.spec_section import LoadShape, SpecConfig
from aerie.contracts.step import StepKind
from tests import fakes
from tests.scheduler.driver import CHAIN, PLAIN, Driver, generate

BIG = fakes.capacity(rows=16, pages=2000, max_length=900)


def prefills(driver: Driver) -> list[dict[int, int]]:
    """Tokens by row of each prefill step so far."""
    return [
        dict(zip(plan.rows.tolist(), plan.prefill.counts.tolist(), strict=True))
        for plan in driver.worker.plans
        if plan.prefill
    ]


def test_prompts_share_a_step_and_the_eldest_fills_it():
    driver = Driver(BIG, prefill_chunk=32)
    driver.run(*[generate(f"r{i}", [i] * 10, max_tokens=1) for i in range(5)])
    assert [list(step.values()) for step in prefills(driver)] == [[10, 10, 10, 2], [8, 10]]


def test_equal_prompts_are_done_in_their_order():
    driver = Driver(BIG, prefill_chunk=16)
    driver.run(*[generate(f"r{i}", [i] * 24, max_tokens=1) for i in range(2)])
    assert [list(step.values()) for step in prefills(driver)] == [[16], [8, 8], [16]]


def test_a_short_prompt_does_not_wait_for_a_long_one():
    driver = Driver(BIG, prefill_chunk=32)
    driver.submit(generate("long", [1] * 800, max_tokens=1))
    for _ in range(3):
        driver.iterate()
    driver.submit(generate("short", [2] * 12, max_tokens=1))
    for _ in range(3):
        driver.iterate()
    assert driver.reported["short"].ids and not driver.reported.get("long")
    assert [20, 12] in [list(step.values()) for step in prefills(driver)], "the long prompt fills what is left"


def test_a_long_prompt_moves_on_under_a_stream_of_short_ones():
    driver = Driver(BIG, prefill_chunk=32)
    driver.submit(generate("long", [1] * 320, max_tokens=1))
    for number in range(60):
        driver.submit(generate(f"s{number}", [number % 50] * 16, max_tokens=1))
        driver.iterate()
        if "long" in driver.reported:
            break
    assert number < 24, "half of each step is the eldest's"
    driver.run()


def turns(accepted: int, **scheduler: int) -> list[StepKind]:
    """Kinds of the steps from a long prompt's first on, beside a row of which each draft accepts so many nodes."""
    worker = fakes.FakeWorker(BIG, acceptance=lambda depth, _: min(accepted, depth))
    driver = Driver(
        BIG, lane=fakes.DelayedLane(worker, 0), spec=CHAIN if accepted else PLAIN, prefill_chunk=8, **scheduler
    )
    driver.submit(generate("a", [1] * 4, max_tokens=200))
    for _ in range(4):
        driver.iterate()
    driver.submit(generate("b", [2] * 160, max_tokens=1))
    for _ in range(24):
        driver.iterate()
    kinds = [plan.kind for plan in driver.worker.plans]
    return kinds[kinds.index(StepKind.PREFILL, 2) :]


def test_while_rows_decode_prefill_and_decode_take_turns():
    assert turns(0)[:10] == [StepKind.PREFILL, StepKind.DECODE] * 5


@pytest.mark.parametrize("accepted", [1, 2])
def test_a_row_waits_for_one_prefill_step_for_each_of_its_tokens(accepted: int):
    """Else drafts would end answers before other prompts are read, and rows would stay empty."""
    assert turns(accepted)[:12] == ([StepKind.PREFILL] * (1 + accepted) + [StepKind.DECODE]) * (12 // (2 + accepted))


def test_a_prefill_step_that_is_not_full_counts_as_much():
    """A prompt that comes while another is read waits for a pass, not for a long decode step."""
    assert turns(2, long_prefill_chunk=4)[:12] == ([StepKind.PREFILL] * 3 + [StepKind.DECODE]) * 3


def test_the_first_in_line_is_not_overtaken_for_want_of_pages():
    driver = Driver(
        fakes.capacity(rows=4, pages=17, reserve=4),
        prefill_chunk=64,
        spec=PLAIN,
    )
    driver.submit(generate("runs", [1] * 20, max_tokens=20))
    driver.iterate()
    driver.submit(generate("big", [2] * 40, max_tokens=1), generate("small", [3], max_tokens=1))
    order = []
    while not driver.scheduler.idle:
        driver.iterate()
        order += [id for id, reported in driver.reported.items() if reported.end and id not in order]
    assert order == ["runs", "big", "small"] or order == ["runs", "small", "big"]
    admitted = {id: reported.end.usage.queue_seconds for id, reported in driver.reported.items()}
    assert admitted["small"] >= admitted["big"] > 0.1


def test_an_admission_leaves_a_page_to_every_row_that_decodes():
    driver = Driver(
        fakes.capacity(rows=4, pages=9, reserve=1),
        prefix_cache=False,
        spec=PLAIN,
    )
    driver.submit(generate("runs", [1] * 14, max_tokens=3))
    driver.iterate()
    driver.submit(generate("exact", [2] * 15, max_tokens=1))
    for _ in range(2):
        driver.iterate()
    assert driver.scheduler.rows.running == 1, "4 pages are free, 4 are needed, and the running row may need one"
    driver.run()
    assert driver.scheduler.policy.preemptions == 0


def test_of_a_burst_that_is_too_many_to_draft_for_the_head_follows_none():
    spec = SpecConfig(planner="fixed", by_load=(LoadShape(rows=2, depth=3, nodes=4),))
    for burst, drafts in ((2, True), (6, False)):
        driver = Driver(BIG, prefill_chunk=8, spec=spec)
        driver.run(*[generate(f"r{i}", [i] * 8, max_tokens=6) for i in range(burst)])
        assert any(plan.drafting.any() for plan in driver.worker.plans) is drafts


def test_a_refused_admission_is_tried_again_when_pages_come_back():
    driver = Driver(fakes.capacity(rows=4, pages=12, reserve=4), prefix_cache=False)
    calls = []
    admit = driver.scheduler.memory.admit
    driver.scheduler.memory.admit = lambda *args, **kwargs: calls.append(1) or admit(*args, **kwargs)
    driver.run(generate("a", [1] * 20, max_tokens=16), generate("b", [2] * 38, max_tokens=1))
    assert len(calls) <= 4
    driver.assert_answered([generate("a", [1] * 20, max_tokens=16), generate("b", [2] * 38, max_tokens=1)])

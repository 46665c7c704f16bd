"""The whole loop on a fake device with delayed results: what requests are told, whatever happens around them."""

import random

import pytest

from contracts.config import Config, LoadShape, SpecConfig
from contracts.errors import ConfigError
from contracts.messages import Abort, Failed, Finished, SpeculationParams
from contracts.step import StepKind
from scheduler import Scheduler
from scheduler.drafting import PATIENCE
from tests import fakes
from tests.scheduler.driver import Driver, generate, random_requests

CHAIN = SpecConfig(depth=3, topk=1, nodes=4)
PLAIN = SpecConfig(depth=0, nodes=1)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("spec", [CHAIN, PLAIN, SpecConfig(depth=3, topk=2, nodes=8)])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_every_request_is_answered_as_if_it_were_alone(overlap, spec, chunk):
    requests = random_requests(40, seed=chunk)
    driver = Driver(fakes.capacity(pages=80), spec=spec, overlap=overlap, prefill_chunk=chunk)
    driver.run(*requests)
    driver.assert_answered(requests)
    assert driver.lane.most_in_flight == (2 if overlap else 1)


def test_overlapped_and_synchronous_loops_tell_the_same():
    requests = random_requests(60, seed=3)
    told = []
    for overlap in (True, False):
        driver = Driver(fakes.capacity(pages=40), overlap=overlap)
        told.append({id: (one.ids, one.end.reason) for id, one in driver.run(*requests).items()})
    assert told[0] == told[1]


def test_random_arrivals_and_a_tiny_pool():
    source = random.Random(5)
    requests = random_requests(80, seed=5)
    driver = Driver(fakes.capacity(rows=6, pages=26))
    waiting = list(requests)
    while waiting or not driver.scheduler.idle:
        if waiting and source.random() < 0.4:
            driver.submit(waiting.pop(0))
        driver.turn()
        driver.scheduler.check()
    driver.assert_answered(requests)
    assert driver.scheduler.policy.preemptions > 0, "the pool was not tiny enough to preempt"


def test_decode_then_prefill_of_others_then_decode_keeps_every_rows_values():
    """Rows absent from a step keep their generation; the fake device refuses to read an unpublished one."""
    first = [generate(f"a{i}", [i, 2, 3], max_tokens=40) for i in range(3)]
    driver = Driver(fakes.capacity(pages=200), prefill_chunk=4)
    driver.submit(*first)
    for _ in range(12):
        driver.turn()
    late = [generate(f"b{i}", list(range(i, i + 20)), max_tokens=20) for i in range(4)]
    driver.run(*late)
    driver.assert_answered(first + late)
    kinds = [plan.kind for plan in driver.worker.plans]
    assert any(kinds[i : i + 3] == [StepKind.DECODE, StepKind.PREFILL, StepKind.DECODE] for i in range(len(kinds) - 2))


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
@pytest.mark.parametrize("length", range(1, 10))
def test_a_limit_at_every_offset_of_an_accepted_run(accepted, length):
    capacity = fakes.capacity()
    worker = fakes.FakeWorker(capacity, acceptance=lambda depth, _: min(depth, accepted))
    driver = Driver(lane=fakes.DelayedLane(worker, seed=length))
    request = generate("a", [5, 6, 7], max_tokens=length)
    driver.run(request)
    driver.assert_answered([request])
    assert len(driver.told["a"].ids) == length and driver.told["a"].end.reason == "length"


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
@pytest.mark.parametrize("place", range(9))
def test_a_stop_id_at_every_offset_of_an_accepted_run(accepted, place):
    capacity = fakes.capacity(vocabulary=5000)
    text, _ = fakes.answer([5, 6, 7], generate("a", [1], max_tokens=12).sampling, capacity, max_length=64)
    worker = fakes.FakeWorker(capacity, acceptance=lambda depth, _: min(depth, accepted))
    driver = Driver(lane=fakes.DelayedLane(worker, seed=place))
    driver.run(generate("a", [5, 6, 7], max_tokens=12, stop_token_ids=(text[place],)))
    told = driver.told["a"]
    assert told.ids == text[: place + 1]
    assert (told.end.reason, told.end.stop_id) == ("stop", text[place])
    assert all(step.accepted <= len(step.ids) <= 4 for step in told.steps)


def test_a_prefix_hit_gives_the_text_of_a_cold_start():
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    driver = Driver()
    driver.run(generate("cold", prompt, max_tokens=9))
    driver.run(generate("warm", prompt, max_tokens=9))
    driver.run(generate("longer", [*prompt, *driver.told["cold"].ids, 8], max_tokens=9))
    assert driver.told["warm"].ids == driver.told["cold"].ids
    assert driver.told["cold"].end.usage.cached_tokens == 0
    assert driver.told["warm"].end.usage.cached_tokens == 8
    assert driver.told["longer"].end.usage.cached_tokens == 16
    driver.assert_answered([generate("longer", [*prompt, *driver.told["cold"].ids, 8], max_tokens=9)])
    assert driver.snapshots[-1].prefix_hits == 24


def test_no_prefix_cache_no_hits():
    driver = Driver(prefix_cache=False)
    for id in ("a", "b"):
        driver.run(generate(id, [1] * 20, max_tokens=4))
    assert driver.told["b"].end.usage.cached_tokens == 0
    assert driver.scheduler.memory.allocator.held == 0


def test_pages_without_head_kv_are_a_miss_for_drafting_requests():
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    plain = SpeculationParams(enabled=False)
    driver = Driver()
    driver.run(generate("plain", prompt, max_tokens=4, speculation=plain))
    driver.run(generate("drafting", prompt, max_tokens=4))
    driver.run(generate("plain again", prompt, max_tokens=4, speculation=plain))
    cached = [driver.told[id].end.usage.cached_tokens for id in ("plain", "drafting", "plain again")]
    assert cached == [0, 0, 8]


def test_preemption_gives_the_same_text_and_nothing_twice():
    requests = [generate(f"r{i}", [i] * 6, max_tokens=50, seed=i) for i in range(5)]
    driver = Driver(fakes.capacity(rows=5, pages=33))
    driver.run(*requests)
    driver.assert_answered(requests)
    preempted = [id for id, told in driver.told.items() if told.end.usage.preemptions]
    assert preempted and "r0" not in preempted, "the youngest go first, the eldest never"
    assert driver.snapshots[-1].preemptions == sum(told.end.usage.preemptions for told in driver.told.values())


@pytest.mark.parametrize("turns", range(12))
@pytest.mark.parametrize("overlap", [True, False])
def test_an_abort_at_any_moment_ends_that_request_only(turns, overlap):
    driver = Driver(fakes.capacity(rows=2, pages=40), overlap=overlap, prefill_chunk=8)
    others = [generate("kept", [1] * 9, max_tokens=12), generate("later", [2] * 9, max_tokens=12)]
    driver.submit(others[0], generate("gone", [3] * 17, max_tokens=25), others[1])
    for _ in range(turns):
        driver.turn()
    driver.run(Abort(id="gone"), Abort(id="gone"), Abort(id="never seen"))
    driver.assert_answered(others)
    told = driver.told["gone"]
    assert told.end.reason == "abort"
    assert told.end.usage.completion_tokens == len(told.ids)
    assert told.ids == driver.expect(generate("gone", [3] * 17, max_tokens=25))[0][: len(told.ids)]


def test_a_row_passes_to_a_new_owner_while_its_old_step_flies():
    driver = Driver(fakes.capacity(rows=1, pages=40))
    driver.submit(generate("old", [1] * 5, max_tokens=40), generate("new", [2] * 5, max_tokens=9))
    for _ in range(4):
        driver.turn()
    assert driver.scheduler._flights
    driver.run(Abort(id="old"))
    driver.assert_answered([generate("new", [2] * 5, max_tokens=9)])


def test_more_than_may_run_and_wait_is_overloaded():
    driver = Driver(fakes.capacity(rows=2, pages=80), max_running=2, max_waiting=3)
    requests = [generate(f"r{i}", [i, 1], max_tokens=4) for i in range(8)]
    driver.run(*requests)
    driver.assert_answered(requests[:5])
    for request in requests[5:]:
        end = driver.told[request.id].end
        assert (end.code, end.status) == ("overloaded", 503) and "at most 5" in end.message


def test_deadlines_of_the_queue_and_of_the_whole():
    driver = Driver(fakes.capacity(rows=1, pages=80))
    requests = [
        generate("runs", [1], max_tokens=40, deadline=0.055),
        generate("waits", [2], max_tokens=4, queue_deadline=0.035),
        generate("patient", [3], max_tokens=4, queue_deadline=9.0, deadline=9.0),
    ]
    driver.run(*requests)
    for id in ("runs", "waits"):
        end = driver.told[id].end
        assert isinstance(end, Failed) and (end.code, end.status) == ("deadline_exceeded", 503)
    assert driver.told["runs"].ids, "what was told before the deadline stays told"
    driver.assert_answered(requests[2:])


@pytest.mark.parametrize(
    ("prompt", "fields", "code", "words"),
    [
        ([1] * 64, {}, "context_length_exceeded", "64 tokens; at most 63"),
        ([], {}, "empty_prompt", "at least 1"),
        ([1, 50], {}, "invalid_request_error", "at most 49"),
        ([-1], {}, "invalid_request_error", "at least 0"),
        ([1], {"stop_token_ids": tuple(range(2, 19)), "ignore_eos": False}, "invalid_request_error", "at most 16"),
    ],
)
def test_what_cannot_be_served_fails_and_says_why(prompt, fields, code, words):
    driver = Driver()
    driver.run(generate("bad", prompt, **fields), generate("good", [1, 2], max_tokens=3))
    end = driver.told["bad"].end
    assert (end.code, end.status) == (code, 400) and words in end.message
    driver.assert_answered([generate("good", [1, 2], max_tokens=3)])


def test_the_longest_prompt_gets_its_one_token():
    driver = Driver()
    driver.run(generate("a", [1] * 63, max_tokens=2**31 - 1, min_tokens=2**31 - 1))
    assert len(driver.told["a"].ids) == 1 and driver.told["a"].end.reason == "length"


def test_a_pool_smaller_than_the_models_length_lowers_the_limit():
    driver = Driver(fakes.capacity(pages=9, reserve=8))
    assert driver.scheduler.ready().max_length == 8 * 4 - 8 + 1
    driver.run(generate("fits", [1] * 24, max_tokens=9), generate("not", [1] * 25, max_tokens=9))
    assert len(driver.told["fits"].ids) == 1
    assert driver.told["not"].end.code == "context_length_exceeded"


def test_a_pool_that_fits_no_request_is_a_config_error():
    with pytest.raises(ConfigError, match=r"engine\.kv_tokens"):
        Driver(fakes.capacity(pages=3, reserve=8))


@pytest.mark.parametrize("at_launch", [True, False])
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_lane_that_dies_fails_every_request_once(steps, at_launch):
    lane = fakes.DyingLane(fakes.FakeWorker(fakes.capacity(rows=2)), steps, at_launch=at_launch)
    driver = Driver(lane=lane)
    driver.submit(*[generate(f"r{i}", [i, 1, 2], max_tokens=30) for i in range(4)])
    while driver.scheduler.dead is None:
        driver.turn()
    driver.submit(generate("late", [1]))
    driver.turn()
    assert driver.scheduler.idle and len(driver.told) == 5
    assert {told.end.code for told in driver.told.values()} == {"engine_dead"}


def test_each_step_is_told_with_the_log_probabilities_asked_for():
    driver = Driver()
    requests = [
        generate("none", [1, 2], max_tokens=7),
        generate("own", [1, 3], max_tokens=7, logprobs=0),
        generate("three", [1, 4], max_tokens=7, logprobs=3),
    ]
    driver.run(*requests)
    assert not driver.told["none"].logprobs
    for id, count in (("own", 0), ("three", 3)):
        told = driver.told[id]
        assert [score.logprob for score in told.logprobs] == [-float(token) for token in told.ids]
        assert all(score.rank_ids == list(range(count)) for score in told.logprobs)
        assert all(len(score.rank_logprobs) == count for score in told.logprobs)


def test_usage_counts_what_was_drafted_and_accepted():
    worker = fakes.FakeWorker(fakes.capacity(), acceptance=lambda depth, _: min(depth, 2))
    driver = Driver(lane=fakes.DelayedLane(worker))
    driver.run(generate("a", [1, 2, 3], max_tokens=13))
    usage = driver.told["a"].end.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, 13)
    # The first token comes from the prompt; then 4 steps commit 3 tokens each.
    assert (usage.steps, usage.drafted, usage.accepted) == (4, 12, 8)
    assert usage.accepted_per_position == [4, 4, 0]
    assert usage.queue_seconds >= 0 and usage.prefill_seconds > 0
    last = driver.snapshots[-1]
    assert (last.drafts, last.drafted, last.accepted, last.committed) == (4, 12, 8, 13)
    assert last.accepted_per_position == [4, 4, 0] and last.prefill_tokens == 3
    assert last.running == last.waiting == 0 and last.phase_seconds["verify"] > 0


def test_a_request_bounds_its_own_nodes():
    driver = Driver(spec=SpecConfig(depth=3, topk=2, nodes=8))
    wide = generate("wide", [1], max_tokens=20)
    driver.run(wide, generate("two", [2], max_tokens=20, speculation=SpeculationParams(max_draft_tokens=2)))
    nodes = {tuple(sorted(plan.decode.nodes.tolist())) for plan in driver.worker.plans if plan.decode}
    assert (3, 8) in nodes and nodes <= {(3, 8), (3,), (8,)}
    alone = Driver(spec=SpecConfig(depth=3, topk=2, nodes=8))
    alone.run(generate("two", [2], max_tokens=20, speculation=SpeculationParams(max_draft_tokens=2)))
    assert {plan.decode.depth for plan in alone.worker.plans if plan.decode} == {2}, "no level without nodes"


def test_under_load_rows_stop_drafting_for_good_and_without_a_wrong_page():
    spec = SpecConfig(by_load=(LoadShape(rows=2, depth=3, nodes=4),))
    driver = Driver(fakes.capacity(rows=6, pages=200, max_length=128), spec=spec)
    first = [generate(f"early{i}", [i, 5, 5, 5, 5], max_tokens=100) for i in range(2)]
    driver.submit(*first)
    for _ in range(6):
        driver.turn()
    late = [generate(f"late{i}", [i, 6, 6], max_tokens=60) for i in range(4)]
    driver.run(*late)
    driver.assert_answered(first + late)
    decodes = [plan for plan in driver.worker.plans if plan.decode]
    depth_zero = [plan for plan in decodes if plan.decode.depth == 0]
    assert any(plan.drafting.any() for plan in depth_zero), "rows keep their head for a while"
    assert sum(bool(plan.drafting.any()) for plan in depth_zero) < PATIENCE + 2
    assert not depth_zero[-1].drafting.any()
    # What the early rows wrote while the head followed is found by drafting rows, the rest is not.
    again = generate("again", [*first[0].prompt, *driver.told["early0"].ids], max_tokens=4)
    driver.run(again)
    driver.assert_answered([again])
    cached = driver.told["again"].end.usage.cached_tokens
    assert 4 <= cached < 96


def test_a_row_sure_to_end_is_not_planned_again():
    driver = Driver(spec=PLAIN)
    driver.run(generate("a", [1, 2, 3], max_tokens=6))
    assert len(driver.worker.plans) == 6, "one prefill and five decodes, none of them surplus"


def test_snapshots_come_about_once_a_second_and_at_idle():
    driver = Driver(spec=PLAIN, prefill_chunk=1)
    driver.run(generate("a", [1] * 60, max_tokens=1))
    driver.now += 0.5
    driver.run(*[generate(f"b{i}", [i] * 60, max_tokens=3) for i in range(5)])
    assert 4 <= len(driver.snapshots) <= 8
    assert driver.snapshots[-1].steps == len(driver.worker.plans)
    assert driver.snapshots[-1].pages_used == 0


def test_idle_until_something_comes_and_ready_says_what_fits():
    driver = Driver()
    assert driver.scheduler.idle
    driver.submit(Abort(id="unknown"))
    assert driver.scheduler.idle
    ready = driver.scheduler.ready()
    assert (ready.max_length, ready.vocabulary, ready.end_ids) == (64, 50, [1])
    driver.submit(generate("a", [1]))
    assert not driver.scheduler.idle


def test_an_id_that_is_open_cannot_come_again():
    driver = Driver()
    driver.submit(generate("a", [1]))
    with pytest.raises(AssertionError, match="open already"):
        driver.submit(generate("a", [1]))


def test_the_default_clock_is_monotonic_time():
    worker = fakes.FakeWorker(fakes.capacity())
    scheduler = Scheduler(fakes.DelayedLane(worker), Config())
    scheduler.submit(generate("a", [1], max_tokens=5, deadline=1.0))
    (end,) = [message for message in scheduler.turn() if isinstance(message, Failed | Finished)]
    assert end.code == "deadline_exceeded"

"""How requests end: at a limit, a stop id, an abort, a deadline, or because they or the lane cannot go on."""

import pytest

from aerie.contracts.config import Config
from aerie.contracts.errors import ConfigError
from aerie.contracts.messages import Abort, Failed, Finished
from aerie.scheduler import Scheduler
from tests import fakes
from tests.scheduler.driver import PLAIN, Driver, generate


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
@pytest.mark.parametrize("length", range(1, 10))
def test_a_limit_at_every_offset_of_an_accepted_run(accepted, length):
    capacity = fakes.capacity()
    worker = fakes.FakeWorker(capacity, acceptance=lambda depth, _: min(depth, accepted))
    driver = Driver(lane=fakes.DelayedLane(worker, seed=length))
    request = generate("a", [5, 6, 7], max_tokens=length)
    driver.run(request)
    driver.assert_answered([request])
    assert len(driver.reported["a"].ids) == length and driver.reported["a"].end.reason == "length"


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
@pytest.mark.parametrize("place", range(9))
def test_a_stop_id_at_every_offset_of_an_accepted_run(accepted, place):
    capacity = fakes.capacity(vocabulary=5000)
    text, _ = fakes.answer([5, 6, 7], generate("a", [1], max_tokens=12).sampling, capacity, max_length=64)
    worker = fakes.FakeWorker(capacity, acceptance=lambda depth, _: min(depth, accepted))
    driver = Driver(lane=fakes.DelayedLane(worker, seed=place))
    driver.run(generate("a", [5, 6, 7], max_tokens=12, stop_token_ids=(text[place],)))
    reported = driver.reported["a"]
    assert reported.ids == text[: place + 1]
    assert (reported.end.reason, reported.end.stop_id) == ("stop", text[place])
    assert all(step.accepted <= len(step.ids) <= 4 for step in reported.steps)


@pytest.mark.parametrize("generations", range(12))
@pytest.mark.parametrize("overlap", [True, False])
def test_an_abort_at_any_moment_ends_that_request_only(generations, overlap):
    driver = Driver(fakes.capacity(rows=2, pages=40), overlap=overlap, prefill_chunk=8)
    others = [generate("kept", [1] * 9, max_tokens=12), generate("later", [2] * 9, max_tokens=12)]
    driver.submit(others[0], generate("gone", [3] * 17, max_tokens=25), others[1])
    for _ in range(generations):
        driver.iterate()
    driver.run(Abort(id="gone"), Abort(id="gone"), Abort(id="never seen"))
    driver.assert_answered(others)
    reported = driver.reported["gone"]
    assert reported.end.reason == "abort"
    assert reported.end.usage.completion_tokens == len(reported.ids)
    assert reported.ids == driver.expect(generate("gone", [3] * 17, max_tokens=25))[0][: len(reported.ids)]


def test_a_row_passes_to_a_new_owner_while_its_old_step_flies():
    driver = Driver(fakes.capacity(rows=1, pages=40))
    driver.submit(generate("old", [1] * 5, max_tokens=40), generate("new", [2] * 5, max_tokens=9))
    for _ in range(4):
        driver.iterate()
    assert driver.scheduler._flights
    driver.run(Abort(id="old"))
    driver.assert_answered([generate("new", [2] * 5, max_tokens=9)])


def test_more_than_may_run_and_wait_is_overloaded():
    driver = Driver(fakes.capacity(rows=2, pages=80), max_running=2, max_waiting=3)
    requests = [generate(f"r{i}", [i, 1], max_tokens=4) for i in range(8)]
    driver.run(*requests)
    driver.assert_answered(requests[:5])
    for request in requests[5:]:
        end = driver.reported[request.id].end
        assert (end.code, end.status) == ("overloaded", 503) and "at most 5" in end.message


def test_deadlines_of_the_queue_and_of_the_whole():
    driver = Driver(fakes.capacity(rows=1, pages=80))
    requests = [
        generate("runs", [1], max_tokens=40, deadline=0.055),
        generate("waits", [2], max_tokens=4, queue_deadline=0.035),
        generate("patient", [3], max_tokens=4, queue_deadline=9.0, deadline=9.0),
    ]
    driver.run(*requests)
    for id, code in (("runs", "deadline_exceeded"), ("waits", "queue_timeout")):
        end = driver.reported[id].end
        assert isinstance(end, Failed) and (end.code, end.status) == (code, 503)
    assert driver.reported["runs"].ids, "what was told before the deadline stays told"
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
    end = driver.reported["bad"].end
    assert (end.code, end.status) == (code, 400) and words in end.message
    driver.assert_answered([generate("good", [1, 2], max_tokens=3)])


def test_the_longest_prompt_gets_its_one_token():
    driver = Driver()
    driver.run(generate("a", [1] * 63, max_tokens=2**31 - 1, min_tokens=2**31 - 1))
    assert len(driver.reported["a"].ids) == 1 and driver.reported["a"].end.reason == "length"


def test_a_pool_smaller_than_the_models_length_lowers_the_limit():
    driver = Driver(fakes.capacity(pages=9, reserve=8))
    assert driver.scheduler.ready().max_length == 8 * 4 - 8 + 1
    driver.run(generate("fits", [1] * 24, max_tokens=9), generate("not", [1] * 25, max_tokens=9))
    assert len(driver.reported["fits"].ids) == 1
    assert driver.reported["not"].end.code == "context_length_exceeded"


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
        driver.iterate()
    driver.submit(generate("late", [1]))
    driver.iterate()
    assert driver.scheduler.idle and len(driver.reported) == 5
    assert {reported.end.code for reported in driver.reported.values()} == {"engine_dead"}


def test_a_row_sure_to_end_is_not_planned_again():
    driver = Driver(spec=PLAIN)
    driver.run(generate("a", [1, 2, 3], max_tokens=6))
    assert len(driver.worker.plans) == 6, "one prefill and five decodes, none of them surplus"


def test_an_id_that_is_open_cannot_come_again():
    driver = Driver()
    driver.submit(generate("a", [1]))
    with pytest.raises(AssertionError, match="open already"):
        driver.submit(generate("a", [1]))


def test_the_default_clock_is_monotonic_time():
    worker = fakes.FakeWorker(fakes.capacity())
    scheduler = Scheduler(fakes.DelayedLane(worker), Config(spec=PLAIN))
    scheduler.submit(generate("a", [1], max_tokens=5, deadline=1.0))
    (end,) = [message for message in scheduler.iterate() if isinstance(message, Failed | Finished)]
    assert end.code == "deadline_exceeded"

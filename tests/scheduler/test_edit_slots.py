"""Edit slots: requests with penalties wait for one without holding up others, and resume with what they had."""

import random

import numpy as np
import pytest

from aerie.contracts.messages import Abort, Failed
from aerie.scheduler.edit_slots import edit_starts
from aerie.scheduler.request import Phase, accept
from tests import fakes
from tests.scheduler.driver import Driver, generate, random_requests

V = fakes.capacity().vocabulary


def penalized(id: str, prompt: list[int], **fields: object):
    return generate(id, prompt, **{"frequency_penalty": 0.5, **fields})


def slots_of(driver: Driver) -> list[list[int]]:
    """The slots that each plan gives to new owners."""
    return [
        plan.starts.edits.slots.tolist()
        for plan in driver.worker.plans
        if plan.starts is not None and plan.starts.edits is not None
    ]


def test_requests_without_edits_bring_none() -> None:
    driver = Driver()
    driver.run(*random_requests(20, 1))
    assert any(plan.starts for plan in driver.worker.plans) and not slots_of(driver)


def test_requests_that_lack_a_slot_wait_and_hold_up_no_others() -> None:
    driver = Driver(fakes.capacity(rows=8, pages=400, edit_slots=2))
    waiting = [penalized(f"p{number}", [2, 3], max_tokens=12) for number in range(4)]
    plain = [generate(f"r{number}", [4, 5], max_tokens=3) for number in range(3)]
    driver.submit(*waiting, *plain)
    while not all(f"r{number}" in driver.reported and driver.reported[f"r{number}"].end for number in range(3)):
        driver.iterate()
    assert {id for id in driver.reported if id.startswith("p")} == {"p0", "p1"}, "the others wait"
    driver.run()
    driver.assert_answered([*waiting, *plain])
    assert sorted(slot for started in slots_of(driver) for slot in started if slot >= 0) == [0, 0, 1, 1]
    assert driver.scheduler.rows.edit_slots.free == 2


def test_those_set_aside_return_in_the_order_of_arrival() -> None:
    driver = Driver(fakes.capacity(rows=8, pages=400, edit_slots=1))
    asked = [penalized(f"p{number}", [2] * (9 - number), max_tokens=4) for number in range(4)]
    driver.run(*asked)
    ends = sorted(driver.reported, key=lambda id: driver.reported[id].end.usage.queue_seconds)
    assert ends == ["p0", "p1", "p2", "p3"], "the shortest was the last to come"


def test_a_wait_for_a_slot_ends_at_its_deadline_as_any_wait_does() -> None:
    driver = Driver(fakes.capacity(rows=8, pages=400, edit_slots=1))
    driver.submit(penalized("first", [2], max_tokens=60), penalized("late", [3], max_tokens=2, queue_deadline=0.1))
    driver.run()
    end = driver.reported["late"].end
    assert isinstance(end, Failed) and end.code == "queue_timeout" and "no edit slot" in end.message
    driver.run(penalized("next", [3], max_tokens=2))
    assert driver.reported["next"].end.reason == "length"


def test_a_request_set_aside_can_be_aborted() -> None:
    driver = Driver(fakes.capacity(rows=8, pages=400, edit_slots=1))
    driver.submit(penalized("first", [2], max_tokens=30), penalized("left", [3], max_tokens=2))
    for _ in range(4):
        driver.iterate()
    driver.run(Abort(id="left"))
    assert driver.reported["left"].end.reason == "abort" and driver.reported["left"].ids == []


def test_without_slots_the_request_is_refused_by_name() -> None:
    driver = Driver(fakes.capacity(edit_slots=0))
    driver.run(generate("r", [2], logit_bias={3: 1.0}))
    end = driver.reported["r"].end
    assert isinstance(end, Failed) and (end.status, end.message) == (
        400,
        "logit_bias is set, and this server does not edit logits: engine.edit_slots is 0; leave it out",
    )


@pytest.mark.parametrize("seed", range(3))
def test_no_slot_is_lost_or_shared_under_aborts_and_preemptions(seed: int) -> None:
    source = random.Random(seed)
    driver = Driver(fakes.capacity(rows=6, pages=26, edit_slots=3), seed=seed)
    for number in range(120):
        asked = penalized if source.random() < 0.6 else generate
        prompt = [source.randrange(4) for _ in range(source.randint(1, 12))]
        driver.submit(asked(f"r{number}", prompt, max_tokens=source.randint(1, 20)))
        if source.random() < 0.3:
            driver.submit(Abort(id=f"r{source.randrange(number + 1)}"))
        driver.iterate()
        held = [owner.edit_slot for owner in driver.scheduler.rows.owners if owner is not None and owner.edits]
        assert len(set(held)) == len(held) == 3 - driver.scheduler.rows.edit_slots.free and -1 not in held
    driver.run()
    assert driver.scheduler.rows.edit_slots.free == 3
    assert driver.scheduler.policy.preemptions > 0


def test_a_resumed_request_begins_with_its_answer_counted() -> None:
    message = penalized(
        "r", [7, 7, 8], logit_bias={4: 2.0, 9: -1.0}, allowed_token_ids=(4, 7, 11), repetition_penalty=1.5
    )
    request = accept(message, fakes.capacity(), number=0, now=0.0, max_length=64, max_depth=3)
    assert request.phase is Phase.WAITING and request.edit_slot == -1
    request.edit_slot, request.tokens = 2, [7, 7, 8, 11, 4, 11]
    starts = edit_starts([request], V)
    assert starts is not None and starts.slots.tolist() == [2] and starts.fills.tolist() == [-np.inf]
    assert (starts.prompt_places - 2 * V).tolist() == [7, 7, 8]
    assert (starts.answer_places - 2 * V).tolist() == [11, 4, 11]
    assert dict(zip((starts.bias_places - 2 * V).tolist(), starts.biases.tolist(), strict=True)) == {
        4: 2.0,
        7: 0.0,
        11: 0.0,
    }


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"min_tokens": 2, "allowed_token_ids": (1,), "ignore_eos": False}, "every token that may be chosen ends"),
        ({"min_tokens": 2, "allowed_token_ids": (5, 6), "stop_token_ids": (6, 5)}, "every token"),
    ],
)
def test_nothing_left_to_choose_is_refused(fields: dict[str, object], named: str) -> None:
    driver = Driver()
    driver.run(generate("r", [2], **fields))
    end = driver.reported["r"].end
    assert isinstance(end, Failed) and end.status == 400 and named in end.message
    driver.run(generate("s", [2], **(fields | {"min_tokens": 0})))
    assert not isinstance(driver.reported["s"].end, Failed)
